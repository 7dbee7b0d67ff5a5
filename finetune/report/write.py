"""Runs -> report.html, report.md with its figures, report.csv: a pure function of the files below the runs folder."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import yaml

from asa import manifest, record
from asa.errors import RequestError
from asa.places import atomic_write, check_folder
from finetune import predictions
from finetune.config import ReportConfig
from finetune.metrics import check_own
from finetune.report import attention, tables
from finetune.report.collect import COMPARED, NO_SEED, STAGES, Run, collect, finished, found_below, is_trial, left_out
from finetune.report.compare import comparisons
from finetune.report.export import table_csv
from finetune.report.labels import differences, grouped, letters, method_labels
from finetune.report.rows import Row, evaluated_rows, pretrain_rows, tuned_rows
from finetune.report.sections import sections

_TITLE = b"Adversarial training of text encoders: report"
MARKS = {"report.md": _TITLE, "report.html": _TITLE, "report.csv": b"stage,task,model,"}
"""What the files begin with, among other things."""
FIGURES = "figures"


def write(config: ReportConfig) -> None:
    """Write the three files and the figures, and print the path of the page.

    Raises: RequestError when there is no run below config.runs, or config.out is no folder, or another's; WorkError for
        a damaged file, predictions that are not their record's, or what cannot be written.
    """
    _check_place(config.out)
    runs = [_checked(run) for run in collect(config.runs)]
    tuned, trained = tuned_rows(runs, config.repeated), pretrain_rows(runs)
    tested = comparisons(tuned)
    maps = [attention.load(path) for path in found_below(config.runs, f"*{attention.ENDING}")]
    content = {
        "summary": _summary(runs, tuned, trained),
        "sections": sections(runs, tuned, trained, maps, tested),
        "left_out": tables.left_out(runs),
        "every_run": tables.every_run(tuned),
        "settings": _settings(runs),
    }
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {"cell": _cell, "alt": _alt, "text": _text}
    try:
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"out = {config.out} cannot be made ({error.strerror}); set another --out") from None
    pages = {name: templates.get_template(f"{name}.j2").render(content) for name in ("report.md", "report.html")}
    _put(config.out / "report.csv", table_csv(tuned + evaluated_rows(runs) + trained, tested))
    for section in content["sections"]:
        for plot in section.plots:
            _put(config.out / FIGURES / f"{plot.picture.name}.png", plot.picture.png)
    for name, page in pages.items():
        _put(config.out / name, page)
    print(config.out / "report.html")


def _check_place(out: Path) -> None:
    """Raises RequestError where the report would lie among another command's files or replace somebody's own."""
    check_folder(out, "--out")
    there = [name for name in MARKS if os.path.lexists(out / name)]
    if own := [name for name in there if MARKS[name] not in _start(out / name)]:
        raise RequestError(f"{out / own[0]} is no report's, so it is not replaced; set another --out")
    figures = out / FIGURES
    if os.path.lexists(figures) and not (figures.is_dir() and (there or not any(figures.iterdir()))):
        raise RequestError(f"{figures} is no folder of a report's, so nothing is put there; set another --out")
    others = [name for name in (manifest.NAME, record.NAME, "config.json") if (out / name).exists()]
    if others and not there:
        raise RequestError(f"{out} has a {others[0]} and is no report's folder; set another --out")


def _start(path: Path) -> bytes:
    """Of a file; empty where there is none."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(2000)


def _checked(run: Run) -> Run:
    """With what its predictions show. Raises: as check_own."""
    if not finished([run], *predictions.STAGES):
        return run
    return replace(run, alike="test" in check_own(run.folder / predictions.FOLDER, run.figures))


def _summary(runs: list[Run], tuned: list[Row], trained: list[Row]) -> list[str]:
    """What was run, one sentence per task, and one for pre-training."""
    lines = []
    for (stage, task), same in grouped(tuned, lambda row: (row.run.stage, row.task)).items():
        seeds = ", ".join(str(seed) for seed in sorted({row.run.seed for row in same} - {NO_SEED})) or "none"
        models, methods = (", ".join(dict.fromkeys(names)) for names in zip(*[row[2:4] for row in same], strict=True))
        what = "Fine-tuning on" if stage == "finetune" else "Scored on"
        lines.append(f"{what} {task}: {counted(len(same))}; models {models}; methods {methods}; seeds {seeds}.")
    if trained:
        parts = [f"{row.method} from {row.model}, {row.run.last_step:,} steps" for row in trained]
        lines.append(f"Continual pre-training: {counted(len(trained))} ({'; '.join(dict.fromkeys(parts))}).")
    if trials := sum(map(is_trial, runs)):
        lines.append(f"Not shown: {trials} trial runs of settings (finetune tune), which are chosen by dev.")
    if rest := left_out(runs):
        failed = sum(run.failed is not None for run in rest)
        told = f" ({failed} failed)" if failed else ""
        lines.append(f"Left out of every average and figure: {len(rest)}{told}, listed below.")
    return lines


def counted(runs: int) -> str:
    return f"{runs} finished run{'s' if runs > 1 else ''}"


def _settings(runs: list[Run]) -> list[tuple[str, str]]:
    """Title and YAML: what was asked for, by which command, and every distinct configuration and environment."""
    done, compared = finished(runs, *STAGES), finished(runs, *COMPARED)
    letter, method = letters(differences(compared)), method_labels(compared)
    blocks: dict[tuple[str, str], int] = {}
    for run in done:
        called = run.name
        if run.name in method:
            called = f"{run.task}, {method[run.name]}{f', settings {letter[run.name]}' if letter[run.name] else ''}"
        for key, title in (
            ("command", f"Command, {run.stage}"),
            ("request", f"Request, {run.stage}"),
            ("config", f"Settings: {called}"),
            ("environment", f"Environment, {run.stage}"),
        ):
            if key in run.facts:
                block = title, _told(key, run.facts[key], run.facts.get("processes", 1))
                blocks[block] = blocks.get(block, 0) + 1
    return [(f"{title} (runs: {count})", text) for (title, text), count in sorted(blocks.items())]


def _told(key: str, value: Any, processes: int) -> str:
    """As YAML; a command as one could type it, a request with the command that takes it."""
    if key == "command":
        program, *rest = value
        start = ["python", "-m", Path(program).parent.name] if Path(program).name == "__main__.py" else [program]
        return f"{shlex.join([*start, *rest])}\n"
    program = "finetune run" if processes == 1 else f"launch finetune --ranks {processes}"
    asked = f"# python -m {program} --config FILE, this text in FILE:\n" if key == "request" else ""
    return asked + yaml.safe_dump(value, sort_keys=False)


def _cell(text: str) -> str:
    """Text that stays within its cell of a Markdown table."""
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Text that is a paragraph's, and is text there: a token `<s>` is no tag."""
    plain = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(text.splitlines()))
    return plain.replace("<", "&lt;")


def _alt(text: str) -> str:
    """Text that stays within its brackets."""
    return _cell(text).replace("[", "\\[").replace("]", "\\]")


def _put(path: Path, content: str | bytes) -> None:
    """A folder's name may hold bytes that are no UTF-8: they are shown as their number."""
    with atomic_write(path) as partial:
        partial.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
