"""Files -> rows: what is written is read, whatever the text holds, and every mistake is a line with its place."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from asa.errors import RequestError, WorkError
from finetune.tasks.files import rows

# All of Unicode that UTF-8 can hold, separators inside texts with them; NUL ends a csv field's line in Python 3.11.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
CELLS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8)
LAWS = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
Table = list[tuple[str, str]]


def read(path: Path, **keys: Any) -> list[dict[str, Any]]:
    return [row.values for row in rows(path, keys.pop("form", "auto"), "--task.train", **keys)]


def as_csv(table: Table) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([("a", "b"), *table])
    return file.getvalue()


def as_jsonl(table: Table) -> str:
    return "".join(json.dumps({"a": a, "b": b}, ensure_ascii=False) + "\n" for a, b in table)


@LAWS
@given(CELLS)
def test_csv_jsonl_and_parquet_give_back_what_was_written(tmp_path: Path, table: Table) -> None:
    wanted = [{"a": a, "b": b} for a, b in table]
    for name, text in {"t.csv": as_csv(table), "t.jsonl": as_jsonl(table), "t.json": json.dumps(wanted)}.items():
        (tmp_path / name).write_text(text, newline="")
        assert read(tmp_path / name) == wanted, name
    parquet.write_table(pa.Table.from_pylist(wanted), tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet") == wanted
    (tmp_path / "t.parquet.gz").write_bytes(gzip.compress((tmp_path / "t.parquet").read_bytes()))
    assert read(tmp_path / "t.parquet.gz") == wanted


@LAWS
@given(CELLS)
def test_tsv_gives_back_any_text_without_tabs_and_line_breaks(tmp_path: Path, table: Table) -> None:
    clean = [tuple(re.sub(r"[\t\r\n]", " ", cell) for cell in pair) for pair in table]
    (tmp_path / "t.tsv").write_text("".join("\t".join(pair) + "\n" for pair in [("a", "b"), *clean]), newline="")
    assert [tuple(row.values()) for row in read(tmp_path / "t.tsv")] == clean


def test_quotes_are_plain_in_tsv_and_lines_may_end_in_dos_manner(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text('a\tb\r\n"open\tshut"\r\nx\ty\r\n', newline="")
    assert read(tmp_path / "t.tsv") == [{"a": '"open', "b": 'shut"'}, {"a": "x", "b": "y"}]


def test_a_csv_may_be_separated_by_tabs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a\tb\n"one, ""two"""\tthree\n')
    assert read(tmp_path / "t.csv") == [{"a": 'one, "two"', "b": "three"}]


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_packed_files_are_read_and_damaged_ones_told(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"t.csv{ending}"
    path.write_bytes(pack(b"a,b\n" + b"1,2\n" * 1000))
    assert read(path) == [{"a": "1", "b": "2"}] * 1000
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(WorkError, match=f"t.csv{ending} is damaged"):
        read(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(WorkError, match=f"t.csv{ending} is damaged"):
        read(path)


def test_a_line_of_names_is_read_as_such_whether_it_is_there_or_not(tmp_path: Path) -> None:
    (tmp_path / "with.tsv").write_text("a\tb\n1\t2\n")
    (tmp_path / "without.tsv").write_text("1\t2\n")
    for name in ("with", "without"):
        assert read(tmp_path / f"{name}.tsv", header=("a", "b")) == [{"a": "1", "b": "2"}]


def test_a_row_cut_in_two_is_joined_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id\ttext\tlabel\n1\tfirst half\nsecond half\tyes\n2\twhole\tno\n")
    with pytest.raises(RequestError, match=r"t.tsv:2: 2 fields, 3 columns \(id, text, label\); mend it or set --task"):
        read(tmp_path / "t.tsv")
    found = read(tmp_path / "t.tsv", mend=True)
    assert [tuple(row.values()) for row in found] == [("1", "first half second half", "yes"), ("2", "whole", "no")]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("a\tno\nb\nc\tyes\n", [("a", "no", 1), (0,), ("c", "yes", 1)]),  # b has no label
        ("a\tno\nb\n", [("a", "no", 1), (0,)]),
    ],
)
def test_a_short_row_is_not_joined_to_a_whole_one(tmp_path: Path, lines: str, wanted: list[tuple]) -> None:
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + lines)
    found = rows(tmp_path / "t.tsv", "auto", "", mend=True)
    assert [(*row.values.values(), row.lines) for row in found] == wanted


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_blank_lines_before_the_names_are_passed_over(tmp_path: Path, name: str) -> None:
    tab = "," if name == "t.csv" else "\t"
    (tmp_path / name).write_text(f"\n \na{tab}b\n1{tab}2\n")
    assert read(tmp_path / name) == [{"a": "1", "b": "2"}]


def test_a_cell_may_be_long(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "x" * 200_000 + ",1\n")
    assert len(read(tmp_path / "t.csv")[0]["a"]) == 200_000


def test_comments_of_conll_are_no_words(tmp_path: Path) -> None:
    text = "# a corpus\n\n# id = 1\nEU\tB-org\n#\tO\n\n#tag\tO\nin\tO\n"
    (tmp_path / "t.conll").write_text(text)
    assert [row["words"] for row in read(tmp_path / "t.conll")] == [["EU", "#"], ["#tag", "in"]]


def test_only_columns_that_are_asked_for_are_read_of_parquet(tmp_path: Path) -> None:
    path, far = tmp_path / "t.parquet", pa.array([0, 2**60], pa.timestamp("ms"))
    parquet.write_table(pa.table({"a": ["x", "y"], "far": far, "zone": far.cast(pa.timestamp("ms", "No/Where"))}), path)
    found = [row.values for row in rows(path, "auto", "--task.train", wanted={"a", "absent"})]
    assert found == [{"a": value, "far": None, "zone": None} for value in ("x", "y")]
    for name, row in (("far", 2), ("zone", 1)):
        with pytest.raises(RequestError, match=rf"t.parquet:{row}: column '{name}' holds a timestamp.* --task.train"):
            list(rows(path, "auto", "--task.train", wanted={"a", name}))
    assert len(list(rows(path, "auto", "--task.train", wanted=()))) == 2
    parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), path)
    with pytest.raises(RequestError, match=r"t.parquet:1: column 'a' is there twice; mend it or set --task.train"):
        read(path)


def test_rows_know_their_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\n"two\nlines",1\nx,2\n')
    assert [row.number for row in rows(tmp_path / "t.csv", "auto", "")] == [2, 4]


def test_conll_sentences_end_at_blank_lines_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("-DOCSTART- -X- O\n\nEU\tB-org\nrejects\tO\n\t\n\nPeter NNP B-per")
    assert read(tmp_path / "t.conll") == [
        {"words": ["EU", "rejects"], "label": ["B-org", "O"]},
        {"words": ["Peter"], "label": ["B-per"]},
    ]


@pytest.mark.parametrize("blank", ["\u00a0", "\u2028", "\x85", "\x0c"])
@pytest.mark.parametrize("between", [" ", "\t", "  "])
def test_words_of_conll_may_hold_blanks_of_other_kinds(tmp_path: Path, blank: str, between: str) -> None:
    (tmp_path / "t.conll").write_text(f"# a comment{blank}\n10{blank}km{between}B-x\n{blank}{between}O\r\n")
    assert read(tmp_path / "t.conll") == [{"words": [f"10{blank}km", blank], "label": ["B-x", "O"]}]


@pytest.mark.parametrize("blank", ["\u00a0", "\u2028", "\u3000"])
def test_a_word_of_conll_that_is_a_blank_ends_no_sentence(tmp_path: Path, blank: str) -> None:
    (tmp_path / "t.conll").write_text(f"{blank}\nIn\n{blank}\nRome\n \t\r\nHi\n")
    assert read(tmp_path / "t.conll") == [{"words": [blank, "In", blank, "Rome"]}, {"words": ["Hi"]}]


@pytest.mark.parametrize("blank", [" \t", "\u00a0", "\x0c", "\x85"])
def test_a_blank_line_of_any_kind_parts_sentences_of_conll_with_labels(tmp_path: Path, blank: str) -> None:
    (tmp_path / "t.conll").write_text(f"In O\n{blank}\nRome B-x\n")
    rows = [{"words": ["In"], "label": ["O"]}, {"words": ["Rome"], "label": ["B-x"]}]
    assert read(tmp_path / "t.conll") == rows


@pytest.mark.parametrize("control", ["\x0b", "\x0c", "\x85"])
def test_a_line_of_control_characters_is_no_word_of_conll(tmp_path: Path, control: str) -> None:
    (tmp_path / "t.conll").write_text(f"In\n{control}\nRome\n")
    assert read(tmp_path / "t.conll") == [{"words": ["In"]}, {"words": ["Rome"]}]


def test_conll_of_words_alone_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("In\nRome\n\nHi\n")
    assert read(tmp_path / "t.conll") == [{"words": ["In", "Rome"]}, {"words": ["Hi"]}]


WRONG = {
    "t.csv": ("a,b\n1,2\n3\n", r"t.csv:3: 1 fields, 2 columns \(a, b\)"),
    "open.csv": ('a,b\n"1,2\n3,4\n', r"open.csv:2: unexpected end of data"),
    "twice.csv": ("a,a\n1,2\n", r"twice.csv:1: column 'a' is there twice"),
    "mac.csv": ("a,b\nx\ry,1\n", r"mac.csv:2: a carriage return outside quotes"),
    "deep.jsonl": ('{"a":' * 100_000, r"deep.jsonl:1: JSON that is nested too deeply"),
    "t.jsonl": ('{"a": 1}\n\n{"a": \n', r"t.jsonl:3: no JSON"),
    "list.jsonl": ("[1]\n", r"list.jsonl:1: JSON '\[1\]', wanted: an object"),
    "t.json": ('[\n{"a": 1},\n{"a" 2}]', r"t.json:3: no JSON"),
    "rows.json": ("[1]", r"rows.json:1: row 1 is no JSON object"),
    "t.conll": ("word O\nalone\n", r"t.conll:2: 'alone' has no second column with the label"),
    "late.conll": ("alone\nword O\n", r"late.conll:2: 'word O' has a label, the words before it have none"),
    "lines.json": ('{"a": 1}\n{"a": 2}\n', r"lines.json:2: no JSON \(Extra data\); .* \(--task.format jsonl\)"),
    "t.txt": ("a", r"t.txt: its ending names no format; set --task.format to one of csv, tsv"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_line_that_is_not_of_the_format_is_named(tmp_path: Path, name: str) -> None:
    text, told = WRONG[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=told):
        read(tmp_path / name)


def test_a_missing_file_another_encoding_and_a_missing_entry_are_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no file .*t.csv; set --task.train"):
        read(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes("a,b\ncafé,1\n".encode("latin-1"))
    with pytest.raises(RequestError, match=r"t.csv is no UTF-8 text"):
        read(tmp_path / "t.csv")
    (tmp_path / "t.json").write_text('{"sst2": [], "rte": []}')
    with pytest.raises(RequestError, match=r"no entry 'qqp', only 'sst2', 'rte'"):
        read(tmp_path / "t.json", entry="qqp")
    (tmp_path / "t.json").write_text('{"data": null}')
    with pytest.raises(RequestError, match=r"t.json:1: entry 'data' holds None, wanted: a list of rows"):
        read(tmp_path / "t.json", entry="data")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(WorkError, match=r"t.parquet is damaged or no parquet file"):
        read(tmp_path / "t.parquet")


def test_race_folders_dream_files_and_six_lines_are_rows(tmp_path: Path) -> None:
    school = tmp_path / "race" / "high"
    school.mkdir(parents=True)
    item = {
        "id": "1",
        "article": "Text.",
        "questions": ["q1", "q2"],
        "options": [["a", "b"]] * 2,
        "answers": ["B", "A"],
    }
    (school / "1.txt").write_text(json.dumps(item), encoding="utf-8-sig")
    found = read(tmp_path / "race", form="race")
    assert [(row["question"], row["answer"], row["article"]) for row in found] == [
        ("q1", "B", "Text."),
        ("q2", "A", "Text."),
    ]
    (school / "2.txt").write_text("{}")
    with pytest.raises(RequestError, match=r"high/2.txt:1: no questions, options and answers"):
        read(tmp_path / "race", form="race")
    question = {"question": "who?", "choice": ["x", "y"], "answer": "y"}
    (tmp_path / "dream.json").write_text(json.dumps([[["M: hi.", "W: ho."], [question, question], "5-1"]]))
    assert read(tmp_path / "dream.json", form="dream") == [{"dialogue": "M: hi. W: ho.", "id": "5-1", **question}] * 2
    (tmp_path / "six").write_text("so\n2\na\nb\nc\nd\n")
    assert read(tmp_path / "six", form="six-lines") == [
        {"context": "so", "label": "2", "endings": ["a", "b", "c", "d"]}
    ]
    (tmp_path / "six").write_text("so\n2\na\n")
    with pytest.raises(RequestError, match="six:3: the file ends inside a row"):
        read(tmp_path / "six", form="six-lines")
