"""What one sees while a run goes on: the progress bar and its figures."""

from typing import Any

from tqdm import tqdm

from asa import dist
from streams import bar

SHOWN = ("generator", "task", "asa", "asa_token", "asa_sentence", "penalty", "smooth", "proximal", "attacked")


def postfix(values: dict[str, Any]) -> str:
    """The figures of a log line, short enough for the bar."""
    parts = [f"{name} {values[name]:.3f}" for name in SHOWN if values.get(name) is not None]
    if "masked_share" in values:
        parts.append("masked " + "/".join(f"{share:.2f}" for share in values["masked_share"]))
    parts.append(f"lr {values['lr']:.1e}")
    if "tokens_per_s" in values:
        parts.append(f"{values['tokens_per_s']:,.0f} tokens/s")
    if "mfu" in values:
        parts.append(f"MFU {values['mfu']:.0%}")
    if values["skipped"]:
        parts.append(f"skipped {values['skipped']}")
    return "  ".join(parts)


def progress_bar(method: str, step: int, steps: int) -> tqdm:
    """The bar of rank 0, begun at `step`; other ranks get one that shows nothing."""
    return bar(f"pretrain {method}", steps, "step", often=1, initial=step, disable=not dist.is_main())
