"""python -m finetune COMMAND: the command lines of the fine-tuning stage."""


def main() -> None:
    from cli import main

    main({"run": run, "report": report, "maps": maps}, "finetune")


def run(argv: list[str]) -> None:
    """Fine-tune models x methods x seeds on a task."""
    from cli import parse
    from finetune.config import FinetuneConfig
    from finetune.sweep import sweep

    sweep(parse(FinetuneConfig, argv, "finetune run"))


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
