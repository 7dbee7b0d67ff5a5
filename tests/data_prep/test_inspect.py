"""What `inspect` shows and writes."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_prep.inspect import _row
from tests.data_prep.asking import one_line, run

Argv = Callable[..., list[str]]


class Page(HTMLParser):
    """The text of a page, and its pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.pictures = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.pictures += tag == "svg"

    def handle_data(self, data: str) -> None:
        self.texts.append(" ".join(data.split()))


def test_rows_counts_and_lengths(build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", *build_argv()) == 0
    facts = json.loads((tmp_path / "out/shards/manifest.json").read_text())["facts"]
    capsys.readouterr()
    page = tmp_path / "pages" / "rows.html"
    assert run("inspect", tmp_path / "out", "--rows", 3, "--page", page) == 0
    shown = capsys.readouterr().out
    assert shown.count("[CLS]") == 6, "three rows of each split"
    rows = facts["rows"]["train"]
    assert re.findall(r"^train row ([\d,]+)", shown, re.MULTILINE) == [f"{part * rows // 3:,}" for part in range(3)]
    for count in (*facts["rows"].values(), *facts["documents"]["dropped"].values(), facts["documents"]["kept"]):
        assert f"{count:,}" in shown
    written = Page()
    written.feed(page.read_text())
    assert written.pictures == 1
    assert sum(text.startswith("[CLS]") for text in written.texts) == 6
    assert "dropped, redirect" in written.texts
    before = page.read_bytes()
    assert run("inspect", tmp_path / "out/shards", "--rows", 3, "--page", page) == 0
    assert page.read_bytes() == before


# What a browser makes of the page, written into its title: widths, the picture's size, rows of text with a height.
MEASURE = """<script>
const box = (element) => element.getBoundingClientRect();
const rows = [...document.querySelectorAll(".row p")].filter((row) => box(row).height > 10).length;
const picture = box(document.querySelector("svg"));
const bars = [...document.querySelectorAll("svg path")].filter((bar) => box(bar).height > 5).length;
document.title = JSON.stringify({width: document.documentElement.scrollWidth, rows, bars,
  picture: [picture.width, picture.height]});
</script>"""


@pytest.mark.parametrize("width", [500, 1200])
def test_the_page_in_a_browser(width: int, build_argv: Argv, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium or google-chrome is installed: the page is not drawn")
    assert run("build", *build_argv()) == 0
    page = tmp_path / ("a-folder-with-a-long-name" * 4) / "rows.html"
    assert run("inspect", tmp_path / "out", "--rows", 3, "--page", page) == 0
    page.write_text(page.read_text() + MEASURE)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [browser, *flags, f"--window-size={width},900", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120)
    title = re.search("<title>(.*?)</title>", shown.stdout)
    assert title, shown.stderr
    found = json.loads(title[1])
    assert found["width"] <= width, "nothing sticks out"
    assert found["rows"] == 6
    assert found["picture"][0] > 300
    assert found["picture"][1] > 100
    assert found["bars"] > 0


def test_a_row_tells_its_documents_and_its_padding() -> None:
    tokenizer: Any = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    row = _row("train", 3, [1, 16, 2, 20, 21, 2, 0, 0], {"pad": 0, "sep": 2}, tokenizer)
    assert row.heading == "train row 3 (2 documents, 2 of padding)"
    assert row.text == "1 16 2 20 21 2"


def test_a_split_without_rows(build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", *build_argv(heldout=0)) == 0
    assert "no row is held out, and pre-training evaluates on some" in capsys.readouterr().out
    assert run("inspect", tmp_path / "out") == 0
    assert "rows, heldout: 0" in capsys.readouterr().out


def test_a_page_where_none_can_be_is_refused_before_anything_is_shown(
    build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", *build_argv()) == 0
    (tmp_path / "pages").mkdir()
    (tmp_path / "file").write_text("mine")
    capsys.readouterr()
    for page in (tmp_path / "pages", tmp_path / "file" / "rows.html"):
        assert run("inspect", tmp_path / "out", "--page", page) == 2
        shown = capsys.readouterr()
        assert "--page" in shown.err
        assert not shown.out
    assert not list(tmp_path.glob("*.partial"))


def test_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", tmp_path / "none") == 2
    assert "none" in one_line(capsys)
    assert run("inspect") == 2
