"""One of two processes that save on a disk that fills up, and a weight that is not finite; results to a file each."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as torch_dist

from asa import checkpoint, dist
from asa.errors import WorkError
from asa.methods import METHODS, MethodsConfig
from tests.asa.conftest import tiny_engine, tiny_module, tiny_tokenizer

SHARES = (0.02, 0.5, 0.97)
"""Of a checkpoint's size, the room that is left: for nothing, for the weights, for all but the last files."""


def failure(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except WorkError as error:
        return [type(error).__name__, str(error)]
    return []


def fill(root: Path, room: int) -> None:
    """Leave `room` bytes."""
    (root / "filler").write_bytes(b"x" * (shutil.disk_usage(root).free - room))


def main(root: Path, out: Path) -> None:
    torch.set_num_threads(1)
    torch_dist.init_process_group("gloo")
    engine, method, found = tiny_engine(tiny_module()), METHODS["asa"](MethodsConfig()), {}
    folder = root / "checkpoints"

    def save(step: int) -> Path:
        return checkpoint.save(folder, step, engine, method, tiny_tokenizer(), {}, keep=1)

    save(1)
    size = sum(file.stat().st_size for file in folder.rglob("*"))
    for share in SHARES:
        if dist.is_main():
            fill(root, int(share * size))
        dist.barrier()
        error = failure(lambda: save(2))
        dist.barrier()
        left = sorted(path.name for path in folder.iterdir()), checkpoint.is_good(folder / "step-1")
        dist.barrier()
        if dist.is_main():
            (root / "filler").unlink()
        found[str(share)] = {"error": error, "left": left}
    dist.barrier()
    with torch.no_grad():
        weight = engine.module.model.get_parameter("bert.embeddings.word_embeddings.weight")
        kept = weight[0, 0].clone()
        weight[0, 0] = float("nan")
        found["nan"] = failure(lambda: save(2))
        weight[0, 0] = kept
    save(2)
    found["after"] = sorted(path.name for path in folder.iterdir())
    (out / f"{dist.rank()}.json").write_text(json.dumps(found))
    dist.close()  # a process that ends without it is now and then aborted by gloo's threads


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
