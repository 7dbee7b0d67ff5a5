"""SLURM: a job that runs this launcher once on every machine, is stopped in time, and requeues itself."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2

from asa.errors import RequestError, WorkError
from launch.options import ClusterOptions

TEMPLATE = Path(__file__).with_name("job.sbatch.j2")


def has_gpus(options: ClusterOptions) -> bool:
    """Whether the job asks for any, which are elsewhere: on as many processes, unless an option of sbatch, the last of
    which counts, says that there are none."""
    asked = [match[1] for line in options.sbatch if (match := re.fullmatch(r"--gpus-per-node[= ]\s*(\S+)", line))]
    return not asked or asked[-1] != "0"


def job(options: ClusterOptions, out: Path, command: list[str]) -> str:
    """The sbatch file. Args: out, the run folder; command, `pretrain` and its flags.

    Raises: RequestError where no line of the file can hold the path of the run folder.
    """
    if not str(out.absolute()).isprintable():
        raise RequestError(f"out = {str(out)!r}: a job's file takes no line break and no control character; set --out")
    templates = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters["quote"] = lambda value: shlex.quote(str(value))
    return templates.from_string(TEMPLATE.read_text()).render(
        options=options,
        out=out.absolute(),
        checkout=Path.cwd(),
        command=shlex.join([sys.executable, "-m", "launch", *command]),
    )


def submit(options: ClusterOptions, out: Path, command: list[str]) -> None:
    """Write OUT/job.sbatch and give it to sbatch. Raises: as `job`; RequestError without sbatch, WorkError for what
    fails."""
    text = job(options, out, command)
    if options.dry_run:
        print(text, end="")
        return
    if shutil.which("sbatch") is None:
        raise RequestError("sbatch is not on PATH; run this where jobs are submitted, or add --dry_run to see the file")
    file = out / "job.sbatch"
    try:
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise WorkError(f"cannot write {file}: {error}") from None
    command = ["sbatch", str(file)]
    print("$ " + shlex.join(command), flush=True)
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise WorkError(f"sbatch refused {file}: {' '.join(answer.stderr.split())}")
    print(answer.stdout.strip())
