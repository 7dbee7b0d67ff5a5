"""What one sees while a run goes on: the progress bar, its figures, and the clock behind tokens per second."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from asa import dist


class Stopwatch:
    """Steps per second between log lines, time spent on evaluation and saving left out."""

    def __init__(self) -> None:
        self.steps, self._start = 0, time.perf_counter()

    def rate(self) -> float:
        """Since the last call. The caller has waited for the device."""
        now = time.perf_counter()
        rate = self.steps / (now - self._start)
        self.steps, self._start = 0, now
        return rate

    @contextmanager
    def paused(self) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self._start += time.perf_counter() - before


SHOWN = ("generator", "task", "asa", "asa_token", "asa_sentence", "penalty")


def postfix(values: dict[str, Any]) -> str:
    """The figures of a log line, short enough for the bar."""
    parts = [f"{name} {values[name]:.3f}" for name in SHOWN if name in values]
    if "masked_share" in values:
        parts.append("masked " + "/".join(f"{share:.2f}" for share in values["masked_share"]))
    return "  ".join([*parts, f"lr {values['lr']:.1e}", f"{values['tokens_per_s']:,.0f} tokens/s"])


def progress_bar(method: str, step: int, steps: int) -> tqdm:
    """The bar of rank 0, begun at `step`; other ranks get one that shows nothing."""
    shown = dist.is_main()
    return tqdm(total=steps, initial=step, desc=f"pretrain {method}", unit="step", disable=not shown, mininterval=1)
