"""python -m data_prep COMMAND: the command lines of the data stage.

Imports are inside the commands: worker processes import this file again and need none of it.
"""


def main() -> None:
    from cli import main

    main({"build": build, "text": text, "sample": sample, "verify": verify}, "data_prep")


def build(argv: list[str]) -> None:
    """Dumps and leads -> training rows and a labelled task."""
    from cli import parse
    from data_prep.build import build
    from data_prep.config import BuildConfig

    build(parse(BuildConfig, argv, "data_prep build"))


def text(argv: list[str]) -> None:
    """INPUT.xml[.bz2] ... --out DIR: dumps -> plain-text documents."""
    from cli import parse
    from data_prep.config import TextConfig
    from data_prep.extract import text

    text(parse(TextConfig, argv, "data_prep text", positional="inputs"))


def sample(argv: list[str]) -> None:
    """Fetch the small assets of the quickstart."""
    from cli import parse
    from data_prep.config import SampleConfig
    from data_prep.sample import sample

    sample(parse(SampleConfig, argv, "data_prep sample"))


def verify(argv: list[str]) -> None:
    """DIR: check a finished folder against its manifest."""
    from cli import parse
    from data_prep.check import verify
    from data_prep.config import VerifyConfig

    verify(parse(VerifyConfig, argv, "data_prep verify", positional="folder"))


if __name__ == "__main__":
    main()
