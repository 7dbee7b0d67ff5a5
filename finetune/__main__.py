"""python -m finetune COMMAND: the command lines of the fine-tuning stage."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    from cli import main

    trains, evaluates = {"run": run, "tune": tune}, {"score": score, "ensemble": ensemble, "submit": submit}
    # Ranks fail together and for the same reason: one of them says it.
    quiet = "" if os.environ.get("RANK", "0") == "0" else "".join(sys.argv[1:2])
    main({**trains, **evaluates, "robustness": robustness, "report": report, "maps": maps}, "finetune", quiet=quiet)


def run(argv: list[str]) -> None:
    """Fine-tune tasks x models x methods x seeds; beside it others of the same --out may work on the same runs."""
    from cli import given
    from finetune.config import FinetuneConfig
    from finetune.sweep import sweep

    values = given(FinetuneConfig, argv, "finetune run")
    _tell_unread(argv, values)
    _as_ranks(lambda: sweep(values))


def tune(argv: list[str]) -> None:
    """Search the settings of each method: as many trials for every one, chosen by dev."""
    from cli import given
    from finetune.config import TuneConfig
    from finetune.tune import tune

    values = given(TuneConfig, argv, "finetune tune")
    _tell_unread(argv, values)
    _as_ranks(lambda: tune(values))


def _tell_unread(argv: list[str], values: dict[str, Any]) -> None:
    """A line on flags of methods that are none of the command's, by the first of the processes that share it."""
    from asa.methods import flags_unread
    from finetune.config import FinetuneConfig

    unread = flags_unread(argv, values.get("methods", FinetuneConfig.methods))
    if unread and not values.get("worker") and os.environ.get("RANK", "0") == "0":
        print(f"note: no method of this run reads {', '.join(unread)}", flush=True)


def _as_ranks(work: Callable[[], None]) -> None:
    """Do what trains, in one process or, under the launcher, on all ranks."""
    import torch

    from asa import dist
    from asa.errors import Apart
    from cli import expect_no_gpu

    expect_no_gpu()
    # In order, so that the terminal gets its cursor back.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # DeepSpeed asks for it even where no launcher has set it.
    os.environ.setdefault("LOCAL_RANK", "0")
    if "RANK" in os.environ:
        if cuda := torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init(cuda, launched=True, start=dist.start_again(os.environ))
    with dist.left():
        try:
            with dist.loss_told():
                work()
            # The work is done: to end by it now would tell the launcher that something is left.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except Apart as error:
            if dist.rank():  # rank 0's is printed in any case
                print(f"error: {error}", file=sys.stderr, flush=True)
            raise


def score(argv: list[str]) -> None:
    """RUN ... --tasks NAMES --out DIR: saved models on other tasks than their own (transfer)."""
    from cli import parse
    from finetune.evaluation_config import ScoreConfig
    from finetune.score import score_all

    score_all(parse(ScoreConfig, argv, "finetune score", positional="models"))


def ensemble(argv: list[str]) -> None:
    """RUN RUN ... --out DIR: averaged predictions of several runs of a task."""
    from cli import parse
    from finetune.ensemble import ensemble
    from finetune.evaluation_config import EnsembleConfig

    ensemble(parse(EnsembleConfig, argv, "finetune ensemble", positional="runs"))


def submit(argv: list[str]) -> None:
    """RUN ... --out FILE.zip: predictions as the GLUE server takes them."""
    from cli import parse
    from finetune.evaluation_config import SubmitConfig
    from finetune.submit import submit

    submit(parse(SubmitConfig, argv, "finetune submit", positional="runs"))


def robustness(argv: list[str]) -> None:
    """--models.NAME DIR ... --reference NAME --out DIR: largest increase of the loss around the word embeddings."""
    from cli import parse
    from finetune.evaluation_config import RobustnessConfig
    from finetune.robustness import robustness

    robustness(parse(RobustnessConfig, argv, "finetune robustness"))


def report(argv: list[str]) -> None:
    """RUNS_DIR --out DIR: every run below a folder -> report.html, report.md, report.csv."""
    from cli import parse
    from finetune.config import ReportConfig
    from finetune.report.write import write

    write(parse(ReportConfig, argv, "finetune report", positional="runs"))


def maps(argv: list[str]) -> None:
    """--model DIR --text "..." --out FILE.png: attention and keep maps on a sentence."""
    from cli import parse
    from finetune.config import MapsConfig
    from finetune.maps import maps

    maps(parse(MapsConfig, argv, "finetune maps"))


if __name__ == "__main__":
    main()
