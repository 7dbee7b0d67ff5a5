"""python -m pretrain run | export. `run` is what `python -m launch pretrain` starts in every process."""

import os

import torch

import cli
from asa import dist
from pretrain.config import PretrainConfig, check
from pretrain.export import ExportConfig, export
from pretrain.loop import train


def run(argv: list[str]) -> None:
    """Pre-train in this process, one of those the launcher started (or the only one)."""
    request = cli.parse(PretrainConfig, argv, "python -m pretrain run")
    cuda = torch.cuda.is_available()
    check(request, int(os.environ.get("WORLD_SIZE", "1")), cuda)
    # DeepSpeed asks for it even where no launcher has set it.
    os.environ.setdefault("LOCAL_RANK", "0")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init(cuda, launched="RANK" in os.environ)
    try:
        train(request, device)
    finally:
        dist.close()


def export_(argv: list[str]) -> None:
    """Write a checkpoint as a Hugging Face folder, logits parity asserted."""
    request = cli.parse(ExportConfig, argv, "python -m pretrain export")
    difference = export(request)
    print(f"{request.out}: largest logit difference from the trained module {difference:.1e}")


if __name__ == "__main__":
    # Ranks fail together and for the same reason: one of them says it.
    cli.main({"run": run, "export": export_}, "pretrain", quiet=os.environ.get("RANK", "0") != "0")
