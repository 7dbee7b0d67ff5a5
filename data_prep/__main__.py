"""python -m data_prep COMMAND: the command lines of the data stage.

Imports are inside the commands: worker processes import this file again and need none of it.
"""

import json


def main() -> None:
    from asa.config import main

    main({"build": build, "text": text, "sample": sample, "verify": verify}, "data_prep")


def build(argv: list[str]) -> None:
    """Dumps and leads -> training rows and a labelled task."""
    from asa.config import parse
    from data_prep.build import build
    from data_prep.config import BuildConfig

    build(parse(BuildConfig, _listed(argv, ("--dumps", "--documents")), "data_prep build"))


def text(argv: list[str]) -> None:
    """INPUT.xml[.bz2] ... --out DIR: dumps -> plain-text documents."""
    from asa.config import parse
    from data_prep.config import TextConfig
    from data_prep.extract import text

    inputs, flags = _leading(argv)
    given = ["--inputs", json.dumps(inputs)] if inputs else []
    text(parse(TextConfig, given + _listed(flags, ("--inputs",)), "data_prep text"))


def sample(argv: list[str]) -> None:
    """Fetch the small assets of the quickstart."""
    from asa.config import parse
    from data_prep.config import SampleConfig
    from data_prep.sample import sample

    sample(parse(SampleConfig, argv, "data_prep sample"))


def verify(argv: list[str]) -> None:
    """DIR: check a finished folder against its manifest."""
    from asa.config import parse
    from asa.errors import RequestError
    from data_prep.check import verify
    from data_prep.config import VerifyConfig

    folders, flags = _leading(argv)
    if len(folders) > 1:
        raise RequestError(f"verify takes one folder, not {len(folders)}; give a single DIR")
    given = ["--folder", folders[0]] if folders else []
    verify(parse(VerifyConfig, given + flags, "data_prep verify"))


def _leading(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before the first flag, and the rest."""
    count = next((index for index, part in enumerate(argv) if part.startswith("-")), len(argv))
    return argv[:count], argv[count:]


def _listed(argv: list[str], flags: tuple[str, ...]) -> list[str]:
    """`--dumps FILE` as `--dumps ["FILE"]`: a lone path would be taken for a file that lists paths."""
    listed = list(argv)
    for index in range(1, len(argv)):
        if argv[index - 1] in flags and not argv[index].startswith("["):
            listed[index] = json.dumps([argv[index]])
    return listed


if __name__ == "__main__":
    main()
