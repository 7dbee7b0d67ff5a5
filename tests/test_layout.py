"""The arrows of the tree, read off the imports: launch -> stages -> asa; and what it depends on. No code is run."""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, Mutation

# Which take Ctrl-C over for the whole process, as is a command's to do and no library's.
COMMANDS = {"benchmarks/__main__.py", "data_prep/__main__.py", "data_prep/parts.py"}
ROOT = Path(__file__).parents[1]
STAGES = ("data_prep", "pretrain", "finetune")
FOLDERS = ("asa", *STAGES, "launch", "benchmarks")
FILES = sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
LONGEST = 50  # lines of a function, its docstring not counted
LOOPS_ALONE = (".step(", "zero_grad(", ".item(", "deepspeed")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def imports(tree: ast.Module) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def reads_environment(tree: ast.Module) -> bool:
    names = {"environ", "environb", "getenv", "putenv"}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    taken = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return bool(names & (used | taken))


def long_functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function) and length(node) > LONGEST:
            yield f"{node.name}: {length(node)} lines"


def length(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def dependencies() -> set[str]:
    """The names in pyproject.toml, of every extra too, without versions; the project's own is none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    return {re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in wanted} - {project["name"]}


def explained(text: str) -> set[str]:
    """The packages of the table of dependencies in CONTRIBUTING.md."""
    table = text.partition("## Dependencies, and why each")[2].partition("\n#")[0]
    firsts = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:]  # without the header
    return {name.strip() for first in firsts for name in re.sub(r"\([^)]*\)", "", first).split(",")}


def of(*folders: str) -> list[str]:
    return [file for file in FILES if file.partition("/")[0] in folders]


def test_every_folder_has_code() -> None:
    assert [folder for folder in FOLDERS if not of(folder)] == []


@pytest.mark.parametrize("file", of("asa"))
def test_the_library_knows_no_stage_no_flags_and_no_environment(file: str) -> None:
    tree = parse(file)
    assert imports(tree) & {*STAGES, "launch", "benchmarks", "tests", "cli", "argparse", "jsonargparse", "sys"} == set()
    assert not reads_environment(tree)


@pytest.mark.parametrize("file", of(*STAGES))
def test_stages_meet_in_files_never_in_imports(file: str) -> None:
    others = {*STAGES, "launch", "benchmarks", "tests"} - {file.partition("/")[0]}
    assert imports(parse(file)) & others == set()


@pytest.mark.parametrize("file", [file for file in FILES if file not in COMMANDS])
def test_nothing_but_commands_takes_interrupts_over(file: str) -> None:
    assert "interrupts" not in imports(parse(file))


@pytest.mark.parametrize("file", [file for file in FILES if file != "asa/zero.py"])
def test_only_the_engine_imports_deepspeed(file: str) -> None:
    assert "deepspeed" not in imports(parse(file))


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("asa/methods/")])
def test_methods_leave_the_loops_work_alone(file: str) -> None:
    text = (ROOT / file).read_text()
    assert [word for word in LOOPS_ALONE if word in text.lower()] == []


@pytest.mark.parametrize("file", FILES)
def test_no_function_is_longer_than_a_page(file: str) -> None:
    assert list(long_functions(parse(file))) == []


def test_every_dependency_has_its_reason() -> None:
    assert dependencies() - explained((ROOT / "CONTRIBUTING.md").read_text()) == set()


def test_the_rules_above_see_what_they_forbid() -> None:
    tree = ast.parse("import os\ndef f():\n    from pretrain.loop import train\n    return os.environ['HOME']\n")
    assert imports(tree) == {"os", "pretrain"}
    assert reads_environment(tree)
    assert reads_environment(ast.parse("from os import getenv"))
    page = 'def f():\n    """Doc.\n\n    More."""\n' + "    pass\n" * LONGEST
    assert list(long_functions(ast.parse(page))) == []
    assert list(long_functions(ast.parse(page + "    pass\n"))) == [f"f: {LONGEST + 1} lines"]
    assert "deepspeed" in imports(parse("asa/zero.py"))
    assert {"torch", "pyright", "triton", "jsonargparse"} <= dependencies()
    rows = "| package | for |\n|---|---|\n| a, b-c (x, y) | d |\n"
    assert explained(f"## Dependencies, and why each\n\n{rows}\n## Next\n| e | f |\n") == {"a", "b-c"}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_every_mutant_finds_its_line(mutation: Mutation) -> None:
    assert (ROOT / "asa" / mutation.file).read_text().count(mutation.text) == 1
