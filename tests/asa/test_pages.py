"""docs/methods: every method has a page, whose settings and passes are those of the program."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from asa.methods import METHODS, MethodsConfig
from tests.benchmarks.test_flops import PASSES

PAGES = Path("docs/methods")
HEADINGS = ["What it minimises", "Settings", "Cost", "When it helps, and when not", "Source"]
BOUNDS = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below", "maximum": "to"}


def settings_table(name: str) -> str:
    """A line per setting of a method: key, default, what is allowed, what it means."""
    kind = type(getattr(MethodsConfig(), name))
    lines = [f"| `--{name}.` | default | allowed | meaning |", "|---|---|---|---|"]
    for key, field in TypeAdapter(kind).json_schema()["properties"].items():
        lines.append(f"| `{key}` | {_plain(field['default'])} | {_allowed(field)} | {_meaning(kind, key)} |")
    return "\n".join(lines)


def _meaning(kind: type, key: str) -> str:
    """What stands below a field, in the class or the one it inherits the field from."""
    owners = (getattr(one, "__pydantic_fields__", {}).get(key) for one in kind.__mro__)
    text = next(one.description for one in owners if one and one.description)
    return " ".join(text.split()).replace("|", r"\|")


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')


def _allowed(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_allowed(part) for part in field["anyOf"])
    if "enum" in field:
        return ", ".join(field["enum"])
    bounds = " ".join(f"{word} {field[key]:g}" for key, word in BOUNDS.items() if key in field)
    words = {"boolean": "true, false", "array": "list of whole numbers", "string": "path"}
    return bounds or words.get(str(field["type"]), str(field["type"]))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_page_with_every_part(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    forwards, backwards, weights = PASSES[name]
    assert f"{forwards:g} forwards, {backwards:g} backwards ({weights:g} for the weights)" in text.replace("\n", " ")


@pytest.mark.parametrize("name", [name for name in METHODS if hasattr(MethodsConfig(), name)])
def test_the_settings_on_a_page_are_the_programs(name: str) -> None:
    assert settings_table(name) in (PAGES / f"{name}.md").read_text()


def test_the_index_leads_to_every_page_and_no_page_is_left_over() -> None:
    index = Path("docs/methods.md").read_text()
    ours = {name for name in METHODS if ":" not in name}  # not those that other tests have brought in
    assert [name for name in ours if f"(methods/{name}.md)" not in index] == []
    assert {path.stem for path in PAGES.glob("*.md")} == ours
