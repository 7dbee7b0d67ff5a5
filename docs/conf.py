"""How `make docs` builds these pages and the reference of the library: Sphinx, with the repository as its source."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
CONTENTS = {
    "Start to end": ["paths/*"],
    "Stages": ["data", "pretrain", "finetune", "tasks", "evaluation", "report", "analysis"],
    "Methods": ["asa", "methods", "methods/*", "adding-a-method"],
    "Library": ["architecture", "trainer", "loops", "api", "kernels"],
    "Running": ["cluster", "benchmarks", "results"],
}
PROJECT = ["CONTRIBUTING", "CHANGELOG", "LAB"]

project = "asa-pretrain"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
root_doc = "README"
include_patterns = ["docs/**.md", *(f"{name}.md" for name in [root_doc, *PROJECT])]
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]  # not searched
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]  # the reader's browser fetches mermaid and draws; without it the source stands
mermaid_fullscreen = False
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of other people's classes are written in another way
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
FieldInfo.__repr__ = lambda self: ", ".join(map(repr, self.metadata))  # what a number may be: Gt(gt=0), Le(le=10)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the side bar's contents below the front page, which by itself names no order of pages."""
    if page == root_doc:
        groups = {title: [f"docs/{name}" for name in names] for title, names in CONTENTS.items()} | {"Project": PROJECT}
        for title, names in groups.items():
            source[0] += "\n".join(["", f"```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n", *names, "```", ""])


def plain_to_rst(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings are plain text: code between backticks or indented by four, a line per argument or field that
    begins with its name, other lists indented by two."""
    names = set(getattr(thing, "__annotations__", {})) | {"Args", "Returns", "Raises"}
    if inspect.isfunction(thing):
        names |= set(inspect.signature(thing).parameters)
    entry = re.compile(rf"(?:{'|'.join(sorted(names))}): |  (?=\S)")
    lines[:] = "\n\n".join([marked_up(text, entry) for text in paragraphs(lines, entry)] + [""]).split("\n")


def paragraphs(lines: list[str], entry: re.Pattern[str]) -> Iterator[str]:
    """Each paragraph or entry, unwrapped."""
    text = ""
    for line in [*lines, ""]:
        if text and (not line.strip() or entry.match(line)):
            yield text
            text = ""
        if text.startswith("    "):
            text += f"\n{line}"
        else:
            text = f"{text} {line.strip()}" if text else line.rstrip()


def marked_up(text: str, entry: re.Pattern[str]) -> str:
    """The same in reStructuredText: an entry as an item of a list, code as code, everything else as it stands."""
    if text.startswith("    "):
        return f"::\n\n{text}"
    head = found.group() if (found := entry.match(text)) else ""
    pieces = text[len(head) :].split("`")
    body = "".join(f"``{piece}``" if n % 2 else re.sub(r"([\\*|_])", r"\\\1", piece) for n, piece in enumerate(pieces))
    if not head:
        return body
    return f"- **{head.removesuffix(': ')}**: {body}" if head.strip() else f"- {body}"


def without_fields(app: Sphinx, what: str, name: str, thing: Any, *rest: Any) -> tuple[str, str] | None:
    """A config's fields stand below it with their meaning, so its signature need not repeat them."""
    return ("(...)", "") if isinstance(thing, type) and is_pydantic_dataclass(thing) else None


def undocumented(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """A NamedTuple's fields stand in its docstring; of themselves they only say that they are fields."""
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number") else None


def front_door(app: Sphinx, error: Exception | None) -> None:
    (Path(app.outdir) / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", plain_to_rst)
    app.connect("autodoc-process-signature", without_fields)
    app.connect("autodoc-skip-member", undocumented)
    app.connect("build-finished", front_door)
