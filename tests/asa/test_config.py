"""Configs: what is wrong is refused with one line that names key, value, allowed range and flag."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import AfterValidator, Field

import interrupts
from asa.config import HUGGING_FACE, config, field_names, from_dict, nearest, save_yaml, sha256_of, to_dict
from asa.errors import RequestError, WorkError
from cli import guard, main, parse
from finetune.config import FinetuneConfig
from keys import keys_of, told
from pretrain.config import PretrainConfig


@config
class Inner:
    """Inner settings."""

    rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of apples kept."""
    marks: dict[str, str] = Field(default_factory=dict)
    """What is written on apples, by name."""


def _known(kind: str) -> str:
    if kind != "cox":
        raise ValueError(f"no kind {kind!r}")
    return kind


@config
class Outer:
    """Outer settings."""

    folder: Path
    """Where apples lie."""
    count: Annotated[int, Field(ge=1)] = 3
    """Apples per basket."""
    colour: Literal["red", "green"] = "red"
    """Colour of an apple."""
    seeds: tuple[int, ...] = (1,)
    """Numbers drawn from."""
    more: tuple[Path, ...] = ()
    """Further folders."""
    ripe: bool = True
    """Whether apples are ripe."""
    sizes: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    """Sizes sorted out, null: none."""
    names: dict[str, Path] = Field(default_factory=dict)
    """Folders by name."""
    numbers: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Numbers by name."""
    weight: float | None = None
    """Weight of an apple, kg; null: unknown."""
    kinds: tuple[Annotated[str, AfterValidator(_known)], ...] = ()
    """Kinds of apples."""
    pairs: Annotated[tuple[Path, ...], Field(min_length=2)] = (Path("a"), Path("b"))
    """Folders to compare."""
    inner: Inner = Inner()
    """Nested settings."""


IN_FILES = "in a file always in brackets: [A]"


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The single stderr line of a refused command line."""
    with pytest.raises(SystemExit) as exit_:
        parse(Outer, argv, "prog")
    assert exit_.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_help_tells_types_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Outer, ["--help"], "prog")
    shown = " ".join(capsys.readouterr().out.split())
    assert "type: a number" in shown
    assert not re.search(r"Annotated|FieldInfo|Optional\[|<class|0x[0-9a-f]+", shown)


def test_help_tells_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Outer, ["--help"], "prog")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Share of apples kept. (type: a number, above 0 to 1, default: 0.5)" in shown
    assert "Apples per basket. (type: a whole number, 1 at least, default: 3)" in shown
    assert "Weight of an apple, kg; null: unknown. (type: a number or null, default: null)" in shown
    assert "type: keys" not in shown, "of a group of keys no type"


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"ge": 1, "le": 9}, ", 1 to 9"),
        ({"gt": 0, "lt": 1}, ", above 0 to below 1"),
        ({"gt": 0}, ", above 0"),
        ({"ge": 8}, ", 8 at least"),
        ({"le": 8}, ", 8 at most"),
        ({"lt": 8}, ", below 8"),
        ({"ge": 64, "multiple_of": 64}, ", 64 at least, a multiple of 64"),
        ({"multiple_of": 64}, ", a multiple of 64"),
    ],
)
def test_bounds_in_words(bounds: dict[str, Any], words: str) -> None:
    assert told(Annotated[int, Field(**bounds)]) == "a whole number" + words


@pytest.mark.parametrize(
    ("flags", "wrong", "nearest"),
    [
        (["--cuont", "4"], "cuont", "count"),
        (["--inner.rat", "0.1"], "inner.rat", "inner.rate"),
        (["--rate", "0.1"], "rate", "inner.rate"),
    ],
)
def test_unknown_flag_names_the_nearest_valid_key(
    flags: list[str], wrong: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["--folder", "x", *flags], capsys)
    assert f"unknown key '{wrong}'" in line
    assert f"did you mean '{nearest}'?" in line


def test_a_key_without_its_group_is_known_but_one_that_is_nearly_it_is_nearer() -> None:
    keys = ["seeds", "recipes", "optim.lr", "task.recipe", "pgd.radius", "freelb.radius"]
    assert nearest("lr", keys) == ["optim.lr"]
    assert nearest("recipe", keys) == ["recipes"]
    assert nearest("qqq", keys) == []


def test_a_name_of_hugging_faces_names_ours() -> None:
    every = [field_names(cls) for cls in (PretrainConfig, FinetuneConfig)]
    for theirs, ours in HUGGING_FACE.items():
        assert any(key in keys for key in ours for keys in every), f"{theirs}: there is none of {ours}"
    assert nearest("learning_rate", every[0]) == nearest("learning_rate", every[1]) == ["optim.lr"]
    assert nearest("eval_steps", every[0]) == ["eval_every"]
    assert nearest("eval_steps", every[1]) == ["evals_per_epoch"]
    assert nearest("output_dir", ["optim.lr", "seeds"]) == [], "no word that is merely as long"


@pytest.mark.parametrize(
    ("text", "wrong", "nearest"),
    [
        ("cuont: 4", "cuont", "count"),
        ("inner:\n  rat: 0.1", "inner.rat", "inner.rate"),
        ("rate: 0.1", "rate", "inner.rate"),
    ],
)
def test_unknown_yaml_key_names_the_nearest_valid_key(
    text: str, wrong: str, nearest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"folder: x\n{text}\n")
    line = refused(["--config", str(path)], capsys)
    assert wrong in line
    assert f"did you mean '{nearest}'?" in line
    with pytest.raises(RequestError, match=f"did you mean '{nearest}'"):
        from_dict(Outer, yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--count", "0"], ("count = 0", "allowed: 1 <= count", "set --count")),
        (["--inner.rate", "1.5"], ("inner.rate = 1.5", "allowed: 0 < rate <= 1", "set --inner.rate")),
        (["--colour", "blue"], ("colour", "blue", "red", "green")),
        (["--count", "many"], ("count", "many")),
    ],
)
def test_a_value_out_of_range_names_key_value_range_and_flag(
    flags: list[str], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["--folder", "x", *flags], capsys)
    assert [part for part in parts if part not in line] == []


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--colour", "blue"], "colour = blue: allowed: red, green; set --colour"),
        (["--ripe", "maybe"], "ripe = maybe: allowed: true, false; set --ripe"),
        (["--inner.rate", "nan"], "inner.rate = nan: allowed: a number; set --inner.rate"),
        (["--count", "1.5"], "count = 1.5: allowed: a whole number; set --count"),
        (
            ["--seeds", "a"],
            f"seeds = a: allowed: a whole number, or several with commas, {IN_FILES}; set --seeds",
        ),
        (["--weight", "light"], "weight = light: allowed: a number or null; set --weight"),
        (["--kinds", "plum"], "kinds = plum: no kind 'plum'; set --kinds"),
        (["--pairs", "a"], "pairs = a: give at least 2, set --pairs"),
        (["--folder", ""], "folder = '': allowed: a path; set --folder"),
        (["--more", ""], f"more = '': allowed: a path, or several as [A,B], {IN_FILES}; set --more"),
        (["--inner", "null"], "inner = null: allowed: keys with their values; set --inner.KEY"),
        (
            ["--config", "more: a.txt"],
            f"more = a.txt: allowed: a path, or several as [A,B], {IN_FILES}; set --more",
        ),
        (["--inner", "3"], "inner = 3: allowed: keys with their values; set --inner.KEY"),
        (["--inner", "{rate: x}"], "inner.rate = x: allowed: a number; set --inner.rate"),
        (["--folder.x", "4"], "unknown key 'folder.x'; --help lists all keys"),
        (["--count", "1:30"], "count = 1:30: allowed: a whole number; set --count"),
        (["--seeds", "010"], "seeds = [010]: 010 would be 8; write 8, or '010' for text; set --seeds"),
        (["--sizes", "010"], "sizes = [010]: 010 would be 8; write 8, or '010' for text; set --sizes"),
        (["--inner", "{rate: 1, rate: 0.1}"], "inner = {rate: 1, rate: 0.1}: key 'rate' a second time; set --inner"),
        (["--config", "count: 010"], "config = count: 010: 010 would be 8; write 8, or '010' for text; set --config"),
        (["--config", "folder: 5"], "folder = 5: allowed: a path; set --folder"),
        (
            ["--config", "names.a: x"],
            "names has a name after a dot in a file; write a block there, names: {NAME: VALUE}",
        ),
        (["--names.a", ""], "names = '': allowed: names, each with a path; set --names.NAME"),
        (["--weight=1:30.5"], "weight = 1:30.5: allowed: a number or null; set --weight"),
        (["--seeds", "1", "--seeds+", "2"], "--seeds+ is no flag, a list is given whole; set --seeds A,B"),
    ],
)
def test_a_value_of_another_type_is_told_in_plain_words_with_its_flag(
    flags: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(["--folder", "x", *flags], capsys) == f"error: {line}"


def test_a_switch_may_stand_alone() -> None:
    for flags, on in ((["--ripe"], True), (["--ripe", "false"], False), (["--ripe=false"], False), ([], True)):
        for place in (["--folder", "x", *flags], [*flags, "--folder", "x"]):
            assert parse(Outer, place, "prog").ripe is on


@pytest.mark.parametrize(
    "given",
    [
        ["--seeds", 3000 * "["],
        ["--seeds", "[" + repr(3000 * "]") + ", " + 3000 * "["],
        ["--more", 3000 * "[" + 3000 * "]"],
        ["--config", 1500 * "- " + "0"],
        ["--config=" + 3000 * "{a: "],
    ],
)
def test_what_is_nested_too_deep_for_a_parser_is_refused(given: list[str]) -> None:
    with pytest.raises(RequestError, match=r"\.\.\. is nested too deep; mend that flag's value$"):
        parse(Outer, ["--folder", "x", *given], "prog")


@pytest.mark.parametrize("content", [b"a: \xff\n", b"", b"- 1\n", b"a: [\n"])
@pytest.mark.parametrize("flag", ["--config {}", "--config={}", "--config {}:entry"])
def test_a_config_that_is_no_yaml_of_keys_is_refused_by_its_name(content: bytes, flag: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"c\.yaml is no UTF-8 YAML of keys .*; mend it or set --config$"):
        parse(Outer, ["--folder", "x", *flag.format(path).split()], "prog")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("count: 3\ncount: 4", "line 3: key 'count' a second time"),
        ("inner: {rate: 0.1, rate: 0.2}", "line 2: key 'rate' a second time"),
        ("count: 010", "line 2: 010 would be 8; write 8, or '010' for text"),
        ("count: 1:30", "line 2: 1:30 would be 90; write 90, or '1:30' for text"),
    ],
)
def test_a_config_that_would_be_read_otherwise_than_it_looks_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"folder: x\n{text}\n")
    with pytest.raises(RequestError, match=re.escape(f"({why})")):
        parse(Outer, ["--config", str(path)], "prog")
    path.write_text("base: &base {count: 3}\nentry: {<<: *base, count: 0x10, seeds: [0, 1_000]}\n")
    found = parse(Outer, ["--folder", "x", "--config", f"{path}:entry"], "prog")
    assert (found.count, found.seeds) == (16, (0, 1000))


def test_a_group_may_be_read_from_a_file_which_is_checked_like_any(tmp_path: Path) -> None:
    path = tmp_path / "inner.yaml"
    path.write_text("rate: 0.25\n")
    assert parse(Outer, ["--folder", "x", "--inner", str(path)], "prog").inner.rate == 0.25
    path.write_text("rate: 0.25\nrate: 0.5\n")
    with pytest.raises(RequestError, match="key 'rate' a second time"):
        parse(Outer, ["--folder", "x", "--inner", str(path)], "prog")


def test_a_file_does_not_name_another(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("config: other.yaml\n")
    (tmp_path / "e.yaml").write_text("entry: {config: other.yaml}\n")
    for given in (f"{tmp_path}/c.yaml", f"{tmp_path}/e.yaml:entry", "{config: other.yaml}"):
        with pytest.raises(RequestError, match=r"has the key 'config', .*; give --config once more instead"):
            parse(Outer, ["--folder", "x", "--config", given], "prog")


@pytest.mark.parametrize("flags", [["--sizes", "3,4"], ["--sizes", "[3,4]"], ["--sizes=3,4"]])
def test_a_list_that_may_be_null_is_one(flags: list[str]) -> None:
    assert parse(Outer, ["--folder", "x", *flags], "prog").sizes == (3, 4)
    assert parse(Outer, ["--folder", "x", "--sizes", "~"], "prog").sizes is None


def test_a_group_may_be_longer_than_a_files_name() -> None:
    for flags in (["--inner", "{rate: 0.25" + 300 * " " + "}"], ["--config", "inner: {rate: 0.25}" + 300 * " "]):
        assert parse(Outer, ["--folder", "x", *flags], "prog").inner.rate == 0.25


def test_a_name_may_have_dots_also_beside_those_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("names: {base: a}\n")
    found = parse(Outer, ["--folder", "x", "--config", str(tmp_path / "c.yaml"), "--names.v1.5", "b/c.d"], "prog")
    assert found.names == {"base": Path("a"), "v1.5": Path("b/c.d")}


def test_printed_names_have_their_dots(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Outer, ["--folder", "x", "--names.v1.5", "b", "--print_config"], "prog")
    assert yaml.safe_load(capsys.readouterr().out)["names"] == {"v1.5": "b"}


def test_no_setting_is_infinite() -> None:
    with pytest.raises(RequestError, match=r"weight = inf: .* finite number"):
        from_dict(Outer, {"folder": "x", "weight": float("inf")})


def test_a_folder_named_as_a_date_is_one_in_an_entry_too(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("entry: {folder: 2026-11-23}\n")
    assert parse(Outer, ["--config", f"{path}:entry"], "prog").folder == Path("2026-11-23")


def test_a_config_without_entries_and_one_without_a_name_are_told(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("folder: x\n")
    with pytest.raises(RequestError, match=rf"has no entries, only keys of one request; set --config {path}$"):
        parse(Outer, ["--config", f"{path}:none"], "prog")
    path.write_text("one: {inner.rate: 1}\ntwo: {folder: x}\n")
    with pytest.raises(RequestError, match=rf"holds entries and no keys; set --config {path}: and one of one, two$"):
        parse(Outer, ["--folder", "x", "--config", str(path)], "prog")
    path.write_text("a:b: {inner.rate: 1}\nc:d:\n")
    with pytest.raises(RequestError, match=r"holds entries and no keys; call one otherwise, without a colon$"):
        parse(Outer, ["--folder", "x", "--config", str(path)], "prog")
    path.write_text("a:b: {inner.rate: 1}\none:\n")
    with pytest.raises(RequestError, match=f"set --config {path}: and one of one$"):
        parse(Outer, ["--folder", "x", "--config", str(path)], "prog")
    for flag in (["--config", ""], ["--config="]):
        with pytest.raises(RequestError, match="--config needs a value"):
            parse(Outer, ["--folder", "x", *flag], "prog")


@pytest.mark.parametrize(
    "text",
    [
        "one: {folder: x}",
        "one: {folder: x}\ntwo: 3",
        "one: {folder: x}\ntwo: false",
        "ripe: {folder: y}\none: {count: 2}",
    ],
)
def test_what_may_be_a_misspelt_key_is_told_as_one(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not as a file of entries, which has several, all of them keys with their values, none a key of ours."""
    path = tmp_path / "c.yaml"
    path.write_text(f"{text}\n")
    assert re.match(
        r"error: (unknown key '(one|two)|ripe = )", refused(["--folder", "x", "--config", str(path)], capsys)
    )


def test_an_empty_path_in_a_file_and_keys_that_are_none_name_their_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    for text, line in (
        ("folder: ''", "folder = '': allowed: a path; set --folder"),
        ("folder: x\ninner: 3", "inner = 3: allowed: keys with their values; set --inner.KEY"),
    ):
        path.write_text(f"{text}\n")
        assert refused(["--config", str(path)], capsys) == f"error: {line}"


def test_help_is_given_beside_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help", "--config", "none.yaml"], ["--config", "none.yaml:x", "-h"], ["stray", "--help"]):
        with pytest.raises(SystemExit) as exit_:
            parse(Outer, argv, "prog")
        assert exit_.value.code == 0
        assert "Where apples lie." in capsys.readouterr().out


def test_flags_have_the_last_word_over_files_wherever_they_stand(tmp_path: Path) -> None:
    for name, text in (
        ("a", "folder: a\ncount: 5\ncolour: green\ninner: {rate: 0.25}\n"),
        ("b", "count: 6\nseeds: [3]\n"),
    ):
        (tmp_path / f"{name}.yaml").write_text(text)
    files = ["--config", str(tmp_path / "a.yaml"), f"--config={tmp_path / 'b.yaml'}"]
    flags = ["--inner.rate", "0.75", "--seeds", "8,9"]
    for argv in ([*flags, *files], [*files, *flags], [*files[:2], *flags, *files[2:]]):
        found = parse(Outer, argv, "prog")
        assert (str(found.folder), found.count, found.colour) == ("a", 6, "green")
        assert (found.inner.rate, found.seeds) == (0.75, (8, 9))


def test_names_of_several_files_are_all_kept(tmp_path: Path) -> None:
    """Each file adds its keys, those of a field that holds names too."""
    texts = ("names: {a: 1st, b.c: 2nd}\n", "folder: x\nnames: {b.c: 3rd, d: 4th}\n", "count: 6\n")
    files = [tmp_path / f"{place}.yaml" for place in range(3)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    argv = [part for file in files for part in ("--config", str(file))]
    found = parse(Outer, [*argv, "--names.a", "9th"], "prog")
    assert found.names == {"a": Path("9th"), "b.c": Path("3rd"), "d": Path("4th")}
    assert (str(found.folder), found.count) == ("x", 6)
    again = parse(Outer, [*argv[2:], *argv[:2]], "prog").names
    assert again == {"a": Path("1st"), "b.c": Path("2nd"), "d": Path("4th")}


def test_a_group_is_read_from_the_folder_of_the_file_that_names_it(tmp_path: Path) -> None:
    """Beside other files with names, too."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "inner.yaml").write_text("rate: 0.75\n")
    (tmp_path / "sub" / "inner.yaml").write_text("rate: 0.25\n")
    (tmp_path / "a.yaml").write_text("names: {a: x}\n")
    (tmp_path / "sub" / "b.yaml").write_text("folder: f\nnames: {b: y}\ninner: inner.yaml\n")
    found = parse(Outer, ["--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "sub/b.yaml")], "prog")
    assert (found.inner.rate, sorted(found.names)) == (0.25, ["a", "b"])


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("names: {a: x}\nnames.b: y\n", None, {"a", "b"}),
        ("names: {a: 2026-01-01T10:00:00Z}\n", "names: {b: 2026-01-01}\n", {"a", "b"}),
    ],
)
def test_dotted_keys_and_times_are_the_parsers(first: str, second: str | None, names: set[str], tmp_path: Path) -> None:
    argv = ["--folder", "f"]
    for place, text in enumerate(text for text in (first, second) if text is not None):
        (tmp_path / f"{place}.yaml").write_text(text)
        argv += ["--config", str(tmp_path / f"{place}.yaml")]
    found = parse(Outer, argv, "prog").names
    assert found.keys() == names
    assert str(found.get("a", "x")) in ("x", "2026-01-01T10:00:00Z")


@pytest.mark.parametrize("text", ["1e3", "1e-5", "no", "2026-01-01", "1.5"])
def test_what_stands_in_quotes_is_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f'folder: f\nnames: {{a: "{text}"}}\nnumbers: {{a: "{text}", b: 1e-5, c: 1e3}}\n')
    found = parse(Outer, ["--config", str(tmp_path / "a.yaml")], "prog")
    assert (found.names, found.numbers["b"], found.numbers["c"]) == ({"a": Path(text)}, 1e-5, 1e3)


STRANGE = ("\U0001f600", "\U00020bb7野家", "\x7f", "a: #b", "'\"", "é\u2028")


@pytest.mark.parametrize("text", STRANGE)
def test_paths_and_texts_come_through_flags_and_entries_as_they_are(text: str, tmp_path: Path) -> None:
    assert parse(Outer, ["--folder", "f", "--more", text], "prog").more == (Path(text),)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"one": {"folder": text, "names": {"a": text}}}))
    found = parse(Outer, ["--config", f"{tmp_path / 'a.yaml'}:one"], "prog")
    assert (found.folder, found.names) == (Path(text), {"a": Path(text)})


def test_names_are_text_as_written(tmp_path: Path) -> None:
    for name, text in (("a", "names: {no: x, 1: y}\n"), ("b", "folder: f\nnames: {yes: z, 2026-01-01: d, 1.50: w}\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
    files = [part for name in "ab" for part in ("--config", str(tmp_path / f"{name}.yaml"))]
    assert sorted(parse(Outer, files, "prog").names) == ["1", "1.50", "2026-01-01", "no", "yes"]


@pytest.mark.parametrize("name", ["no", "1", "1.5", "null", "1e3", "1e-5", "1.5e5"])
def test_names_that_yaml_reads_as_no_text_are_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a flag, which the parser reads; in a file they are as they are written, and so quoted."""
    (tmp_path / "a.yaml").write_text(f"names: {{{name}: x}}\n")
    assert "no text; put it in quotes" in refused(["--folder", "f", "--names", f"{{{name}: x}}"], capsys)
    for given in (["--names", f'{{"{name}": x}}'], ["--config", str(tmp_path / "a.yaml")]):
        assert parse(Outer, ["--folder", "f", *given], "prog").names == {name: Path("x")}


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["names: {a: x}\ninner: {rate: 0.5}\n", "names: {b: x}\n", "inner.rate: 0.25\n"], {"a", "b"}),
        (["names: {a: x, b: x}\n", "names: {c: x}\nnames.d: x\n"], {"a", "b", "c", "d"}),
        (["names: {a: x}\nnames.b: x\n", "names: {c: x}\n"], {"a", "b", "c"}),
    ],
)
def test_dotted_keys_of_a_file_take_no_names_of_others_away(texts: list[str], names: set[str], tmp_path: Path) -> None:
    argv = ["--folder", "f"]
    for place, text in enumerate(texts):
        (tmp_path / f"{place}.yaml").write_text(text)
        argv += ["--config", str(tmp_path / f"{place}.yaml")]
    found = parse(Outer, argv, "prog")
    assert found.names.keys() == names
    assert found.inner.rate == 0.25 or "inner" not in texts[-1]


GROUPS = {
    "a": "inner: {marks: {a: x}}\n",
    "c": "inner.marks: {c: x}\n",
    "both": "inner: {marks: {a: x}}\ninner.marks: {c: x}\n",
    "three": "inner: {rate: 0.25, marks: {a: x}}\ninner.marks: {c: x}\ninner.marks.g: x\n",
    "plain": "inner: rate.yaml\n",
    "named": "inner: more.yaml\n",
    "deep/d": "inner: more.yaml\n",
    "rate": "rate: 0.25\n",
    "more": "rate: 0.75\nmarks: {e: x}\n",
    "deep/more": "marks: {f: x}\n",
}


@pytest.mark.parametrize(
    ("files", "rate", "marks"),
    [
        (("a", "c"), 0.5, "ac"),
        (("a", "plain", "c"), 0.25, "ac"),
        (("a", "named", "c"), 0.75, "ace"),
        (("named", "a"), 0.75, "ae"),
        (("a", "deep/d"), 0.5, "af"),
        (("both",), 0.5, "ac"),
        (("three",), 0.25, "acg"),
    ],
)
def test_names_in_groups_are_all_kept_however_they_are_given(
    files: tuple[str, ...], rate: float, marks: str, tmp_path: Path
) -> None:
    """In a block, by a dotted key, or in a group's file of their own."""
    (tmp_path / "deep").mkdir()
    for name, text in GROUPS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    argv = [part for name in files for part in ("--config", str(tmp_path / f"{name}.yaml"))]
    found = parse(Outer, ["--folder", "f", *argv], "prog").inner
    assert (found.rate, "".join(sorted(found.marks))) == (rate, marks)


def test_a_groups_file_beside_a_dotted_key_of_it_is_refused(tmp_path: Path) -> None:
    """The parser would keep the key and drop the file without a word."""
    (tmp_path / "inner.yaml").write_text("rate: 0.25\n")
    (tmp_path / "a.yaml").write_text("inner: inner.yaml\ninner.marks: {a: x}\n")
    with pytest.raises(RequestError, match=r"a.yaml has inner: inner.yaml and inner.marks, .* put inner.marks into"):
        parse(Outer, ["--folder", "f", "--config", str(tmp_path / "a.yaml")], "prog")
    (tmp_path / "b.yaml").write_text("inner: inner.yml\ninner.rate: 0.5\n")  # no such file
    with pytest.raises(RequestError, match=r"b.yaml has inner: inner.yml and inner.rate, which would take its place"):
        parse(Outer, ["--folder", "f", "--config", str(tmp_path / "b.yaml")], "prog")
    (tmp_path / "c.yaml").write_text("inner: '{rate: 0.25}'\ninner.marks: {a: x}\n")
    with pytest.raises(RequestError, match=r"c.yaml has inner: \{rate: 0.25\} and inner.marks, which"):
        parse(Outer, ["--folder", "f", "--config", str(tmp_path / "c.yaml")], "prog")
    inline = f"{{inner: {tmp_path / 'inner.yaml'}, inner.marks: {{a: x}}}}"
    with pytest.raises(RequestError, match=r"--config has inner: .* put inner.marks into"):
        parse(Outer, ["--folder", "f", "--config", inline], "prog")


@pytest.mark.parametrize(
    "text", ["inner.rate: 0.25\ninner: {marks: {a: x}}\n", "inner: {rate: 0.5}\ninner.rate: 0.25\n"]
)
def test_a_groups_block_beside_a_dotted_key_of_it_is_refused(text: str, tmp_path: Path) -> None:
    """The parser would drop the key above the block, and of one key given in both keep the later."""
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(
        RequestError, match=r"a.yaml has the block inner and inner.rate, .* put inner.rate into the form"
    ):
        parse(Outer, ["--folder", "f", "--config", str(tmp_path / "a.yaml")], "prog")
    (tmp_path / "b.yaml").write_text("inner.rate: 0.25\n")
    (tmp_path / "c.yaml").write_text("inner: {marks: {a: x}}\n")
    files = [part for name in "bc" for part in ("--config", str(tmp_path / f"{name}.yaml"))]
    assert parse(Outer, ["--folder", "f", *files], "prog").inner == Inner(rate=0.25, marks={"a": "x"})


def test_a_group_that_is_null_in_a_file_is_refused(tmp_path: Path) -> None:
    """It would be the defaults, over what an earlier file has said."""
    (tmp_path / "a.yaml").write_text("inner: null\n")
    with pytest.raises(RequestError, match=r"a.yaml has inner: null, allowed: keys with their values; leave inner out"):
        parse(Outer, ["--folder", "f", "--config", str(tmp_path / "a.yaml"), "--inner.rate", "1"], "prog")


def test_a_text_that_looks_like_a_number_is_written_as_text(tmp_path: Path) -> None:
    save_yaml(
        Outer(folder=Path("1e5"), names={"a": Path("0.5"), "b": Path("-1.5E3")}, weight=1e-5), tmp_path / "a.yaml"
    )
    found = parse(Outer, ["--config", str(tmp_path / "a.yaml")], "prog")
    assert (found.folder, found.names, found.weight) == (Path("1e5"), {"a": Path("0.5"), "b": Path("-1.5E3")}, 1e-5)


@pytest.mark.parametrize("values", [[1, 2], None, "x"])
def test_what_is_no_keys_is_refused_as_a_config(values: Any) -> None:
    with pytest.raises(RequestError, match="allowed: keys with their values"):
        from_dict(Inner, values)


def test_a_name_in_a_list_is_refused() -> None:
    with pytest.raises(RequestError, match=r"--seeds.a: seeds is a list and has no names; set --seeds A,B"):
        parse(Outer, ["--folder", "f", "--seeds.a", "1"], "prog")


def test_names_as_a_whole_beside_one_of_them_are_refused() -> None:
    """Of two flags the parser would keep the whole and drop the name before it."""
    names = ["--inner.marks.a", "x", "--inner.marks", "{b: y}"]
    for argv, flag in ((["--numbers.a", "1", "--numbers", "{b: 2}"], "numbers"), (names, "inner.marks")):
        with pytest.raises(RequestError, match=rf"--{flag} would take the place of --{flag}.a; give all in one way"):
            parse(Outer, ["--folder", "f", *argv], "prog")
    with pytest.raises(RequestError, match=r"--numbers would take the place of --numbers; give all in one way"):
        parse(Outer, ["--folder", "f", "--numbers={a: 1}", "--numbers={b: 2}"], "prog")
    assert parse(Outer, ["--folder", "f", "--numbers={b: 2}", "--numbers.a=1"], "prog").numbers == {"a": 1, "b": 2}


def test_a_groups_text_may_be_longer_than_a_files_name(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"inner: '{{\"rate\": 0.25{' ' * 300}}}'\n")
    assert parse(Outer, ["--folder", "f", "--config", str(tmp_path / "a.yaml")], "prog").inner.rate == 0.25


def test_text_beside_a_dotted_key_whose_first_part_is_no_group_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("folder: f\nnumbers: {a: 1}\nnumbers.b: 2\n")
    assert parse(Outer, ["--config", str(tmp_path / "a.yaml")], "prog").numbers == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", ["0:0.01", "1:30.5", "190:20:30.15"])
def test_what_counts_in_sixties_is_no_number(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"folder: f\ninner: {{rate: {text}}}\n")
    with pytest.raises(RequestError, match=rf"line 2: {text} would be [\d.]+; write [\d.]+, or '{text}'"):
        parse(Outer, ["--config", str(tmp_path / "a.yaml")], "prog")


def test_a_file_of_thousands_of_brackets_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"inner: {'[' * 3000 + ']' * 3000}\n")
    with pytest.raises(RequestError, match=r"a.yaml is no UTF-8 YAML of keys and values \(maximum recursion depth"):
        parse(Outer, ["--folder", "f", "--config", str(tmp_path / "a.yaml")], "prog")


def test_exponents_are_numbers_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1e-5\nb: 1.5e5\nc: -2E3\nd: '1e5'\n")
    assert keys_of(tmp_path / "a.yaml") == {"a": 1e-5, "b": 1.5e5, "c": -2e3, "d": "1e5"}


def test_a_number_that_is_none_stays_one_beside_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("numbers: {a: 1}\n")
    (tmp_path / "b.yaml").write_text("folder: f\nnumbers: {b: .inf}\n")
    line = refused(["--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml")], capsys)
    assert "numbers.b.float = inf: Input should be a finite number" in line


def test_a_config_that_is_not_there_is_told_with_its_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["--config", str(tmp_path / "none.yaml")], capsys)
    assert line.startswith("error: config: File does not exist")
    assert line.endswith("; set --config")


def test_an_argument_after_the_flags_is_sent_before_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Outer, ["--folder", "x", "apples"], "prog", positional="more")
    assert capsys.readouterr().err == "error: unexpected argument 'apples'; give more before the first flag\n"
    assert "unexpected argument 'apples'; see --help" in refused(["--folder", "x", "apples"], capsys)


def test_a_missing_key_names_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert "folder" in refused([], capsys)
    with pytest.raises(RequestError, match="give --folder"):
        from_dict(Outer, {})


def test_a_python_call_is_checked_like_a_file() -> None:
    with pytest.raises(ValueError, match="less than or equal to 1"):
        Inner(rate=2.0)
    with pytest.raises(ValueError, match="unexpected_keyword_argument"):
        Inner(rat=0.1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("folder: x\ncount: 7\ninner:\n  rate: 0.25\n")
    found = parse(Outer, ["--config", str(path), "--count", "9"], "prog")
    assert found == Outer(folder=Path("x"), count=9, inner=Inner(rate=0.25))


def test_print_config_round_trips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--folder", "x", "--count", "9", "--inner.rate", "0.125", "--colour", "green"]
    with pytest.raises(SystemExit) as exit_:
        parse(Outer, [*flags, "--print_config"], "prog")
    assert exit_.value.code == 0
    path = tmp_path / "c.yaml"
    path.write_text(capsys.readouterr().out)
    assert parse(Outer, ["--config", str(path)], "prog") == parse(Outer, flags, "prog")
    assert set(yaml.safe_load(path.read_text())) == {field.name for field in fields(Outer)}, "defaults are printed too"


def test_print_config_prints_what_is_given_alone_where_a_file_of_all_keys_would_overrule_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(Outer, ["--folder", "x", "--inner.rate", "0.125", "--print_config"], "prog", show_defaults=False)
    assert yaml.safe_load(capsys.readouterr().out) == {"folder": "x", "inner": {"rate": 0.125}}


def test_help_shows_every_field_doc(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(Outer, ["--help"], "prog")
    assert exit_.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    docs = (
        "Outer settings.",
        "Where apples lie.",
        "Apples per basket.",
        "Colour of an apple.",
        "Share of apples kept.",
    )
    assert [doc for doc in docs if doc not in shown] == []


def test_yaml_round_trips_and_keeps_the_hash(tmp_path: Path) -> None:
    value = Outer(folder=Path("a/b"), inner=Inner(rate=0.1))
    save_yaml(value, tmp_path / "c.yaml")
    again = parse(Outer, ["--config", str(tmp_path / "c.yaml")], "prog")
    assert again == value
    assert sha256_of(again) == sha256_of(value)
    assert sha256_of(Outer(folder=Path("a/c"), inner=Inner(rate=0.1))) != sha256_of(value)
    assert to_dict(value)["inner"] == {"rate": 0.1, "marks": {}}


@pytest.mark.parametrize("flags", [["--seeds", "4,5"], ["--seeds=4,5"], ["--seeds", "[4, 5]"]])
def test_lists_are_written_with_commas_or_brackets(flags: list[str]) -> None:
    assert parse(Outer, ["--folder", "x", *flags], "prog").seeds == (4, 5)


def test_leading_arguments_stand_for_the_positional_field() -> None:
    assert parse(Outer, ["x", "--count", "4"], "prog", positional="folder").folder == Path("x")
    assert parse(Outer, ["a", "b", "--folder", "x"], "prog", positional="more").more == (Path("a"), Path("b"))
    for positional in ("", "folder"):
        with pytest.raises(RequestError, match="unexpected argument 'b'"):
            parse(Outer, ["a", "b", "--folder", "x"], "prog", positional=positional)


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("error", "code"), [(RequestError("bad flag"), 2), (WorkError("bad disk"), 1)])
def test_deliberate_errors_become_one_line_and_their_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(lambda: fail(error)) == code
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ZeroDivisionError"])
def test_an_interrupt_before_a_command_begins_is_a_line_and_a_bug_is_not(error: str) -> None:
    command = [sys.executable, "-c", f"import cli; raise {error}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr.splitlines()
    if error == "KeyboardInterrupt":
        assert [line.partition(";")[0] for line in said] == ["error: interrupted"]
    else:
        assert (said[0], said[-1]) == ("Traceback (most recent call last):", error)


IMPORTED = """
import os, signal
try:
    for n in range(ASKED):
        os.kill(os.getpid(), signal.SIGINT)
except BaseException as error:
    raise ImportError("a library's own") from None
print("imported", flush=True)
"""


COMMAND = """
import atexit, os, signal
import cli
from asa.config import config
@config
class Request:
    n: int = 1
def work(argv):
    FIRST
    THEN
cli.main({"work": work}, "prog", ["work"])
"""
LOAD, PARSE = "import library", 'cli.parse(Request, argv, "prog"); print("begun", flush=True)'


def asked(folder: Path, first: str, then: str, times: int = 1) -> "subprocess.CompletedProcess[str]":
    """A command that loads a library, in which SIGINT comes so many times, and parses its flags."""
    (folder / "library.py").write_text(IMPORTED.replace("ASKED", str(times)))
    return subprocess.run(
        [sys.executable, "-c", COMMAND.replace("FIRST", first).replace("THEN", then)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(folder)},
        # What a shell starts in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_an_interrupt_waits_while_modules_are_loaded(tmp_path: Path) -> None:
    """transformers makes a ModuleNotFoundError of one, and loaders of models a request that is wrong."""
    done = asked(tmp_path, LOAD, PARSE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "imported\n", f"{interrupts.LINE}\n")
    helped = asked(tmp_path, LOAD, 'cli.parse(Request, ["--help"], "prog")')
    assert (helped.returncode, helped.stdout, helped.stderr) == (130, "imported\n", f"{interrupts.LINE}\n")


def test_an_interrupt_that_comes_twice_or_in_the_work_does_not_wait(tmp_path: Path) -> None:
    twice, late = asked(tmp_path, LOAD, PARSE, times=2), asked(tmp_path, PARSE, LOAD)
    assert (twice.returncode, twice.stdout) == (1, "")
    assert (late.returncode, late.stdout) == (1, "begun\n")
    assert twice.stderr.endswith(own := "ImportError: a library's own\n")
    assert late.stderr.endswith(own)


def test_an_interrupt_of_a_command_that_is_over_is_none(tmp_path: Path) -> None:
    """torch has work left at Python's end, of which a traceback came."""
    done = asked(tmp_path, PARSE, "atexit.register(os.kill, os.getpid(), signal.SIGINT)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")


def test_what_is_closed_to_this_user_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard(lambda: fail(PermissionError(13, "Permission denied", "data/x.json"))) == 2
    said = "error: data/x.json is closed to this user; mend its permissions, or name another\n"
    assert capsys.readouterr().err == said
    with pytest.raises(PermissionError):
        guard(lambda: fail(PermissionError("of no file")))
    with pytest.raises(PermissionError):
        guard(lambda: fail(PermissionError(1, "Operation not permitted", "data/x.json")))


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        guard(lambda: fail(ZeroDivisionError()))


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["--help"], 0), (["rnu"], 2), (["run"], 0)])
def test_main_dispatches_and_helps(argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def run(rest: list[str]) -> None:
        """Runs."""

    with pytest.raises(SystemExit) as exit_:
        main({"run": run}, "prog", argv)
    assert exit_.value.code == code
    assert ("did you mean 'run'?" in capsys.readouterr().err) == (argv == ["rnu"])
