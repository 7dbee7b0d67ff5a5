"""Every form of input, cut into parts and read."""

import bz2
import io
import itertools
import json
import os
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asa.errors import RequestError, WorkError
from data_prep import hub, own, sources
from data_prep.shards import is_heldout
from data_prep.sources import Task
from data_prep.text import Document
from tests.data_prep.conftest import dump_xml, page_xml, prose

ROWS = [{"id": str(n), "title": f"T{n}", "text": prose(n)} for n in range(50)]
DOCUMENTS = [Document(**row) for row in ROWS]


def read(*inputs: object, min_chars: int = 40) -> list[Document]:
    found = sources.find([Path(str(item)) for item in inputs], "INPUT")
    tasks = [part.task[1] for part in sources.parts(found)]
    return [document for task in tasks for document in sources.documents(task, Counter(), min_chars)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SMALLEST", 700)


def jsonl(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.usefixtures("small_parts")
def test_jsonl_plain_packed_and_parquet_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl(ROWS))
    with pa.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as stream:
        stream.write(jsonl(ROWS).encode())
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=7)
    for name in ("a.jsonl", "a.jsonl.zst", "a.parquet"):
        assert read(tmp_path / name) == DOCUMENTS, name
    assert len(sources.parts([str(tmp_path / "a.jsonl")])) > 10
    assert len(sources.parts([str(tmp_path / "a.parquet")])) == 8


def test_text_without_id_and_title_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "two \\ud800", "id": 7}\n')
    assert read(tmp_path / "a.jsonl", min_chars=1) == [
        Document("a.jsonl:0", "text 7692c3ad3540bb80", "one"),
        Document("7", "7", "two"),
    ]


@pytest.mark.parametrize(("name", "between"), [("a.jsonl", "\n"), ("a.txt", "\n\n")])
def test_wherever_a_file_is_cut_every_document_comes_once(name: str, between: str, tmp_path: Path) -> None:
    """Also where one part ends and a document begins."""
    texts = ["one", "two", "three"]
    rows = [json.dumps({"text": text}) for text in texts] if name == "a.jsonl" else texts
    (tmp_path / name).write_text(between.join(rows) + "\n")
    path, size = str(tmp_path / name), (tmp_path / name).stat().st_size
    for cut in range(1, size):
        tasks = [Task(path, 0, cut, name), Task(path, cut, size, name)]
        found = [document.text for task in tasks for document in sources.documents(task, Counter(), 1)]
        assert found == texts, cut


def test_an_empty_id_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "one", "id": null}\n{"text": "two", "id": ""}\n{"text": "3", "id": 0}\n'
    )
    found = read(tmp_path / "a.jsonl", min_chars=1)
    assert [document.id for document in found] == ["a.jsonl:0", "a.jsonl:28", "0"]
    assert [document.title for document in found] == ["text 7692c3ad3540bb80", "text 3fc4ccfe745870e2", "0"]


@pytest.mark.parametrize(("name", "between"), [("a.jsonl", "\n"), ("a.txt", "\n\n")])
def test_what_is_held_out_of_text_without_titles_goes_by_the_text(name: str, between: str, tmp_path: Path) -> None:
    """In another order, with a line more and in a file of another name it is the same."""
    texts = [f"word {n}" for n in range(40)]

    def heldout(folder: str, texts: list[str]) -> set[str]:
        (tmp_path / folder).mkdir()
        rows = [json.dumps({"text": text}) if name == "a.jsonl" else text for text in texts]
        (tmp_path / folder / f"{folder}{name}").write_text(between.join(rows))
        found = read(tmp_path / folder / f"{folder}{name}", min_chars=1)
        assert len(found) == len(texts)
        return {document.text for document in found if is_heldout(document.title, 0.3)}

    first = heldout("x", texts)
    assert 4 <= len(first) <= 20
    assert first == heldout("y", ["before", *reversed(texts)]) - {"before"}


def test_a_blank_title_is_none(tmp_path: Path) -> None:
    """Documents of one title are held out together."""
    rows = [{"id": f"n{n}", "title": " ", "text": f"word {n}"} for n in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [document.title for document in read(tmp_path / "a.jsonl", min_chars=1)] == ["n0", "n1", "n2"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_one_long_document_is_not_read_again_for_every_part(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    text = "words of it" + (" " if name == "a.jsonl" else "\n")
    path.write_text(json.dumps({"text": text * 1000}) if name == "a.jsonl" else text * 1000)
    read_bytes = []

    class Counted(io.FileIO):
        def readline(self, size: int | None = -1) -> bytes:
            read_bytes.append(len(line := super().readline(size)))
            return line

        def __next__(self) -> bytes:
            read_bytes.append(len(line := super().__next__()))
            return line

    monkeypatch.setattr(own, "_CHUNK", 100)
    monkeypatch.setattr(Path, "open", lambda self, mode: Counted(self, mode))
    size = path.stat().st_size
    tasks = [Task(str(path), start, start + 400, name) for start in range(0, size, 400)]
    assert len([document for task in tasks for document in sources.documents(task, Counter(), 1)]) == 1
    assert sum(read_bytes) < 6 * size


def test_text_of_other_editors(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\r\n\r\nthree\r\n".encode())
    assert [document.text for document in read(path, min_chars=1)] == ["one\ntwo", "three"]
    path.write_bytes("\ufeff\n\r\n\none\n\ntwo\n".encode())
    assert [document.text for document in read(path, min_chars=1)] == ["one", "two"]
    dropped = Counter[str]()
    assert len(list(sources.documents(Task(str(path), 0, path.stat().st_size, path.name), dropped, 1))) == 2
    assert not dropped
    path.write_text("one\n\u00a0\u2003\ntwo\u00a0\n\u00a0three\n")
    assert [document.text for document in read(path, min_chars=1)] == ["one", "two\u00a0\n\u00a0three"]
    for content in (b"one\rtwo\r\rthree\r", b"one\r \rtwo\r"):
        path.write_bytes(content)
        with pytest.raises(WorkError, match=r"a\.txt has the line ends of classic Mac OS"):
            read(path, min_chars=1)
    path.write_bytes(b"one\r\rtwo\n\nthree\r\rfour")
    assert len(read(path, min_chars=1)) == 2
    path.write_bytes(b"one\r\r\n\r\r\ntwo\r\r\n")  # as a Windows program writes what has its line ends already
    assert [document.text for document in read(path, min_chars=1)] == ["one", "two"]
    path.write_bytes(b"one\n\ncaf\xe9\n")
    with pytest.raises(WorkError, match=r"a\.txt is not UTF-8 at byte 8"):
        read(path, min_chars=1)
    for text, place in (("one\n\ntwo", 1), ("первый и второй", 1), ("الأول والثاني", 1)):
        path.write_bytes(text.encode("utf-16-le"))
        with pytest.raises(WorkError, match=rf"a\.txt is not UTF-8 at byte {place}"):
            read(path, min_chars=1)
    path.write_bytes(b"one zero\0 among many letters")
    assert len(read(path, min_chars=1)) == 1


def test_lone_surrogates_go_from_every_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "i\\ud800", "title": "t\\ud800", "text": "x\\ud800"}\n')
    assert read(tmp_path / "a.jsonl", min_chars=1) == [Document("i", "t", "x")]


LINES = st.lists(st.sampled_from(["word", "a b", "", " ", "end."]), max_size=30)


@settings(max_examples=200)
@given(lines=LINES, cuts=st.lists(st.integers(0, 100), max_size=5))
def test_text_files_are_cut_at_empty_lines(
    lines: list[str], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.txt"
    content = "\n".join(lines)
    path.write_text(content)
    size = len(content)
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    tasks = [Task(str(path), start, stop, "a.txt") for start, stop in itertools.pairwise(edges) if start < stop]
    found = [document.text for task in tasks for document in sources.documents(task, Counter(), 1)]
    blocks = "\n".join(line if line.strip() else "" for line in lines).split("\n\n")
    assert found == [block.strip() for block in blocks if block.strip()]


def test_files_of_one_name_give_different_ids(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(folder)
    assert [d.id for d in read(tmp_path / "a/x.txt", tmp_path / "b/x.txt", min_chars=1)] == ["x.txt:0", "x.txt(2):0"]


def test_globs_and_an_index_beside_the_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x-multistream2.xml-p4p6.bz2", "x-multistream1.xml-p1p3.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(dump_xml(page_xml(name, prose(1))).encode()))
    for name in ("x-multistream-index.txt.bz2", "x-multistream-index1.txt-p1p41242.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(b"600:1:A\n"))
    monkeypatch.chdir(tmp_path)
    assert [document.title[:14] for document in read("x-*.bz2")] == ["x-multistream1", "x-multistream2"]
    with pytest.raises(RequestError, match="index alone"):
        read("x-*index*")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (["none.xml"], "no file none.xml"),
        (["a" * 300 + ".txt"], "aaa.txt; give existing ones"),
        (["caf*.jsonl"], r"the name 'caf\udce9.jsonl' is no UTF-8; rename the file"),
        (["*.nothing"], "no file matches"),
        (["data"], "data is a folder; give its files, such as 'data/*.txt', with"),
        (["docs"], "docs is a finished folder: build and tokenizer read documents by --documents, dedup as its"),
        (["a.csv"], "must end in one of"),
        (["a.jsonl.bz2"], "must end in one of"),
        (["a.txt", "a.txt"], "given twice"),
        (["a.txt", "*.txt"], "given twice"),
        (["a.txt", "./a.txt"], "given twice"),
        (["a.txt", "link.txt"], "given twice"),
        (["hub:data", "hub:./data::train"], "given twice"),
        (["hub:"], "hub:NAME"),
        (["hub:a:b:c:d"], "hub:NAME"),
    ],
)
def test_wrong_requests(inputs: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.csv", "a.txt", "a.jsonl.bz2"):
        (tmp_path / name).write_text("text")
    Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.jsonl")).write_text("text")
    (tmp_path / "link.txt").symlink_to("a.txt")
    for folder in ("data", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=re.escape(said)):
        read(*inputs)


def test_a_file_that_does_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text")

    def refused(*given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)  # root may read any
    with pytest.raises(RequestError, match=r"a\.txt cannot be read \(Permission denied\)"):
        read(tmp_path / "a.txt")


def test_an_id_that_is_no_date_of_pythons(tmp_path: Path) -> None:
    table = pa.table({"text": [prose(1)], "id": pa.array([2**62], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(WorkError, match=r"a\.parquet is truncated or damaged \(date value out of range\)"):
        read(tmp_path / "a.parquet")


NESTED = '{"text": "x", "more": ' + "[" * 200_000 + "]" * 200_000 + "}"


@pytest.mark.parametrize(
    "line",
    ["no json", '["text"]', '{"txt": "x"}', '{"text": 5}', pytest.param(NESTED, id="nested too deep")],
)
def test_a_row_that_is_no_document(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(WorkError, match=rf"{tmp_path}/a\.jsonl: line 2 .*mend the file"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("key", ["text", "id", "title"])
def test_a_row_with_two_texts_ids_or_titles_is_told(key: str, tmp_path: Path) -> None:
    fine = '{"text": "one", "other": 1, "other": 2, "meta": {"id": 1, "id": 2, "text": 3, "text": 4}}'
    (tmp_path / "a.jsonl").write_text(f'{fine}\n{{"text": "two", "{key}": "three", "{key}": "four"}}\n')
    with pytest.raises(WorkError, match=rf"a\.jsonl: line 2 has the key {key} twice, of which one .*; mend the file"):
        read(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text(f"{fine}\n")
    assert [one.text for one in read(tmp_path / "a.jsonl", min_chars=1)] == ["one"]


def test_a_row_with_other_keys_is_told_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n\n{"content": "one", "url": "u"}\n')
    with pytest.raises(WorkError, match=r"line 3 has no text: .* with the key text and not content, url, a string"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_rows_in_another_encoding(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"text": "one"}\n{"text": "two"}\n'.encode(encoding))
    with pytest.raises(WorkError, match=rf"{tmp_path}/a\.jsonl: .* is not UTF-8; convert it"):
        read(tmp_path / "a.jsonl", min_chars=1)


def test_a_parquet_file_with_two_columns_of_one_name_is_told(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["first"]), pa.array(["second"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(WorkError, match=r"a\.parquet has two columns 'text', of which one would be left out; drop one"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"no such thing")
    with pytest.raises(WorkError, match="damaged"):
        read(tmp_path / name)


def test_a_parquet_file_with_a_damaged_page(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, use_dictionary=False, compression="zstd")
    good = path.read_bytes()
    said = []
    for place in range(4, len(good), 97):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        # The format has no sum over its pages: some changes only change the text.
        try:
            read(path, min_chars=1)
        except WorkError as error:
            said.append(str(error))
    assert len(said) > 10
    assert not [line for line in said if "\n" in line]


def test_a_truncated_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(jsonl(ROWS).encode())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WorkError, match="truncated or damaged"):
        read(path)


@pytest.fixture
def data_set(tmp_path: Path) -> str:
    """A local data set, which `datasets` streams as it does one of the hub."""
    for number in range(5):
        pq.write_table(pa.Table.from_pylist(ROWS[10 * number : 10 * number + 10]), tmp_path / f"train-{number}.parquet")
    return f"hub:{tmp_path}"


def test_a_data_set_is_streamed_a_file_at_a_time(data_set: str) -> None:
    assert hub.files(data_set) == 5
    assert read(data_set) == DOCUMENTS
    before = hub.identity(data_set)
    assert len(before["sha256"].split()) == 2 * 5
    folder = Path(data_set.removeprefix("hub:"))
    (folder / "train-0.parquet").rename(folder / "test-0.parquet")
    assert hub.identity(data_set) != before, "names tell the split"


def test_where_a_data_set_lies_leaves_no_trace(data_set: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": prose(n)} for n in range(5)]
    for folder in ("here/wiki", "there/wiki"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / folder / "train.parquet")
    found = read(f"hub:{tmp_path}/here/wiki", min_chars=1)
    assert [document.id for document in found] == [f"hub:wiki::train#0:{n}" for n in range(5)]
    monkeypatch.chdir(tmp_path / "there")
    assert read("hub:wiki", min_chars=1) == found
    assert hub.identity("hub:wiki") == hub.identity(f"hub:{tmp_path}/here/wiki")
    assert str(tmp_path) not in str(hub.identity("hub:wiki"))


def test_a_data_set_in_the_form_of_the_hubs_wikipedia(tmp_path: Path) -> None:
    """Configs by folder, told by the card's front matter, as wikimedia/wikipedia has them."""
    (tmp_path / "20231101.de").mkdir()
    (tmp_path / "20231101.en").mkdir()
    for place in range(3):
        table = pa.Table.from_pylist(ROWS[10 * place : 10 * place + 10])
        pq.write_table(table, tmp_path / f"20231101.en/train-{place:05d}-of-00003.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[30:]), tmp_path / "20231101.de/train-00000-of-00001.parquet")
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/*\n"
        for name in ("20231101.de", "20231101.en")
    )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert read(f"hub:{tmp_path}:20231101.en") == DOCUMENTS[:30]
    assert read(f"hub:{tmp_path}:20231101.de:train") == DOCUMENTS[30:]
    with pytest.raises(WorkError, match="cannot be read"):
        read(f"hub:{tmp_path}:20231101.xx")


def test_a_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WorkError, match=r"cannot be read .*check the name and the network") as raised:
        read("hub:nobody/nothing")
    assert "\n" not in str(raised.value)


def test_a_data_set_without_text(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"label": 1}]), tmp_path / "train.parquet")
    with pytest.raises(WorkError, match="has the columns label, but no text"):
        read(f"hub:{tmp_path}")
