"""python -m pretrain run | export. A command loads what it needs, which takes seconds, when it is given."""

import os
import signal

import cli


def run(argv: list[str]) -> None:
    """Pre-train in this process, one of those the launcher started (or the only one)."""
    from pretrain import process

    process.run(argv)
    # All is written: to end by a signal now would tell the launcher that this rank has failed.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def export_(argv: list[str]) -> None:
    """Write a checkpoint as a Hugging Face folder, logits parity asserted."""
    from pretrain.config import ExportConfig

    request = cli.parse(ExportConfig, argv, "python -m pretrain export")
    from pretrain.export import export

    cli.expect_no_gpu()
    difference = export(request)
    print(f"{request.out}: largest logit difference from the trained module {difference:.1e}")


if __name__ == "__main__":
    # Ranks fail together and for the same reason: one of them says it.
    quiet = "" if os.environ.get("RANK", "0") == "0" else "run"
    cli.main({"run": run, "export": export_}, "pretrain", quiet=quiet)
