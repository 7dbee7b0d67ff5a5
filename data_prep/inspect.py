"""The command `inspect`: rows of a finished data set as text, and what became of the documents; on paper as HTML."""

import io
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from asa import manifest
from asa.places import atomic_write, check_file
from asa.tokenizer import load_tokenizer
from data_prep.config import InspectConfig
from data_prep.shards import COLUMN, SPLITS

_TEMPLATE = Path(__file__).with_name("inspect.html.j2")
_WIDTH = 40  # characters of the longest bar


class Row(NamedTuple):
    """One row: which it is, how many places are padding and how many documents touch it, and its text."""

    split: str
    number: int
    padding: int
    documents: int
    text: str

    @property
    def heading(self) -> str:
        of = "1 document" if self.documents == 1 else f"{self.documents} documents"
        return f"{self.split} row {self.number:,} ({of}, {self.padding} of padding)"


def inspect(config: InspectConfig) -> None:
    """Print rows, counts and document lengths; write them as a page where one is asked for.

    Raises: RequestError where there is no finished folder of shards, or no page can be written; WorkError where it is
        damaged.
    """
    if config.page:
        check_file(config.page, "--page")
    nested = config.folder / "shards"
    folder = nested if nested.is_dir() else config.folder
    facts = manifest.verify(folder, "shards", "DIR")
    tokenizer = load_tokenizer(folder / "tokenizer", "DIR")
    rows = [row for split in SPLITS for row in _rows(folder, split, facts, tokenizer, config.rows)]
    figures, lengths = _figures(facts), _lengths(facts)
    _print(rows, figures, lengths)
    if config.page:
        _write_page(config.page, folder, rows, figures, lengths)
        print(f"written to {config.page}")


def _rows(
    folder: Path, split: str, facts: dict[str, Any], tokenizer: PreTrainedTokenizerBase, wanted: int
) -> list[Row]:
    """`wanted` rows at even distances, the first one included."""
    paths = sorted(folder.glob(f"{split}-*.arrow"))
    if not paths:
        return []
    stored = concatenate_datasets([Dataset.from_file(str(path)) for path in paths])
    numbers = sorted({step * len(stored) // wanted for step in range(wanted)})
    return [_row(split, number, stored[number][COLUMN], facts["special_ids"], tokenizer) for number in numbers]


def _row(split: str, number: int, ids: list[int], special: dict[str, int], tokenizer: PreTrainedTokenizerBase) -> Row:
    padding = ids.count(special["pad"])
    real = ids[: len(ids) - padding]
    return Row(split, number, padding, real.count(special["sep"]), str(tokenizer.decode(real)))


def _figures(facts: dict[str, Any]) -> dict[str, str]:
    documents, tokens = facts["documents"], sum(facts["tokens"].values())
    places = sum(facts["rows"].values()) * facts["length"]
    named = {f"rows, {split}": f"{facts['rows'][split]:,}" for split in SPLITS}
    named |= {
        "ids per row": f"{facts['length']} ({facts['dtype']}, {facts['packing']})",
        "vocabulary": f"{facts['vocab_size']:,}",
        "tokens of documents": f"{tokens:,} ({tokens / max(places, 1):.1%} of all places)",
        "tokens cut off": f"{facts['tokens_cut']:,}",
        "documents kept": f"{documents['kept']:,} ({documents['heldout']:,} held out)",
        "tokens per document": f"{(tokens + facts['tokens_cut']) / max(documents['kept'], 1):.0f}, as they came",
    }
    return named | {f"dropped, {reason}": f"{count:,}" for reason, count in documents["dropped"].items()}


def _lengths(facts: dict[str, Any]) -> dict[str, int]:
    """Documents by their number of tokens: "128 to 255" -> how many."""
    counts = {int(key): count for key, count in facts["documents"]["lengths"].items()}
    return {f"{2 ** (bits - 1):,} to {2**bits - 1:,}": counts[bits] for bits in sorted(counts)}


def _print(rows: list[Row], figures: dict[str, str], lengths: dict[str, int]) -> None:
    for row in rows:
        print(f"{row.heading}\n  {row.text}\n")
    for name, value in figures.items():
        print(f"{name}: {value}")
    print("documents by tokens:")
    most = max(lengths.values(), default=1)
    for name, count in lengths.items():
        print(f"  {name:>18s} {count:>12,} {'#' * round(_WIDTH * count / most)}")


def _write_page(page: Path, folder: Path, rows: list[Row], figures: dict[str, str], lengths: dict[str, int]) -> None:
    # Both take a second to load, and only the page needs them.
    import jinja2

    template = jinja2.Template(_TEMPLATE.read_text(encoding="utf-8"), autoescape=True)
    text = template.render(folder=folder, rows=rows, figures=figures, plot=_plot(lengths))
    with atomic_write(page) as partial:
        partial.write_text(text, encoding="utf-8")


def _plot(lengths: dict[str, int]) -> str:
    """The lengths as an SVG picture, the same bytes each time."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "inspect", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 3), layout="constrained")
        axes = figure.subplots()
        bars = axes.bar(range(len(lengths)), list(lengths.values()), color="#4477aa")
        # A few long documents among many would be bars too low to see.
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xticks(range(len(lengths)), list(lengths), rotation=45, ha="right")
        axes.set(xlabel="tokens", ylabel="documents")
        axes.spines[["top", "right"]].set_visible(False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    content = buffer.getvalue()
    return content[content.index("<svg") :]
