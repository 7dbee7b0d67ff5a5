"""What the pages speak of is there: links, headings, files, config files, make targets. `make docs` draws them."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CURRENT = [page for page in PAGES if page.name not in ("LAB.md", "CHANGELOG.md")]  # those two tell of earlier versions
FOLDERS = ("asa", "data_prep", "pretrain", "finetune", "launch", "benchmarks", "configs", "docs", "tests")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
FILE = re.compile(rf"(?<![\w/.$-])((?:{'|'.join(FOLDERS)})/[\w./*{{}},-]*\w)")
PLACEHOLDER = re.compile(r"[A-Z]{4}|[{}]")
MADE = re.compile(r"^cat > (\S+)", re.MULTILINE)  # by the reader, as the page says


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """A page's headings as GitHub addresses them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith("http"):
            continue
        unbuilt = target.suffix == ".md" and target not in (*PAGES, page)  # `make docs` refuses it
        if not target.exists() or unbuilt or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def lost_files(text: str) -> list[str]:
    asked = [file for file in FILE.findall(text) if not PLACEHOLDER.search(file) and file not in MADE.findall(text)]
    return [file for file in asked if not list(ROOT.glob(file))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", CURRENT, ids=name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    assert lost_files(page.read_text()) == []


def test_every_config_file_is_named_in_a_page() -> None:
    """Tasks and methods have tables of their names; the others must be named as files."""
    told = "\n".join(page.read_text() for page in CURRENT)
    files = [
        *ROOT.glob("configs/data/*.yaml"),
        *ROOT.glob("configs/pretrain/*.yaml"),
        *ROOT.glob("configs/finetune/*.yaml"),
    ]
    assert [name(file) for file in files if file.name not in told] == []
    tasks = (ROOT / "docs/tasks.md").read_text() + (ROOT / "docs/evaluation.md").read_text()
    # Those of the project: a reader may have put files of her own there.
    ours = subprocess.run(["git", "ls-files", "configs/task"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [Path(file).stem for file in ours.stdout.splitlines()]
    assert len(names) >= 30
    assert [name for name in names if not named(name, tasks)] == []


def named(task: str, text: str) -> bool:
    """In full, or as the table has it: `advglue-sst2`, `-qqp`."""
    first, _, rest = task.partition("-")
    return bool(re.search(rf"(?<![\w-]){task}(?![\w-])", text)) or (first in text and f"`-{rest}`" in text)


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {word for page in CURRENT for word in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert asked - targets == set()
    assert asked >= {"setup", "quickstart", "test", "docs"}


def test_the_checks_above_see_what_is_wrong(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "table.md").write_text("# There, and no page of the docs\n")
    links = "[x](none.md) [y](#a-head-one) [z](#other) [t](table.md) `[q](code.md)`"
    page.write_text(f"# A head: one\n{links}\n```\n[c](code.md)\n```\n")
    assert broken_links(page) == ["none.md", "#other", "table.md"]
    assert lost_files("`asa/engine.py`, asa/gone.py and `configs/pretrain/NAME.yaml`") == ["asa/gone.py"]
    assert lost_files("see docs/mine.md\ncat > configs/task/mine.yaml <<'YAML'\n") == ["docs/mine.md"]
