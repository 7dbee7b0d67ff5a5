"""What a forward pass of an attached model is told to do, and how that reaches the hooks inside the model."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.batch import Looked
from asa.fused.products import Keys, Products

# B rows, D width, H heads, L length (queries, then keys)


class Site(NamedTuple):
    """One self-attention layer in one forward pass, as the maker of its keep map sees it.

    layer: from the bottom, from 0. h_BLD: the layer's input.
    keys: True in seen_BLL where a query may attend a key at all (no padding, within a local layer's window).
    weights: () -> attention weights BHLL of the unperturbed layer without dropout; no gradient. Costs a forward pass.
    fused: the adversary's settings -> the type of the products of which the layer can make its own map while it attends
        (asa.fused on a GPU, asa.cpu_attention); None: it cannot. The first call tries a GPU's kernels, for a while.
    """

    layer: int
    h_BLD: Tensor
    keys: Keys
    weights: Callable[[], Tensor]
    fused: Callable[[ASAConfig], torch.dtype | None] = lambda _: None

    @property
    def seen_BLL(self) -> Tensor:
        """Of `keys`; sizes of 1 stand for all."""
        return self.keys.seen_BLL


Attend = Callable[[Site], Tensor | Products | None]
Tap = Callable[[int, Tensor], None]  # block from the bottom, from 0, and the BLD that enters it (or leaves the last)


@dataclass(frozen=True)
class Below:
    """A tap that sees what enters blocks and not what leaves the last one, which then may leave out tokens."""

    tap: Tap

    def __call__(self, block: int, h_BLD: Tensor) -> None:
        self.tap(block, h_BLD)


@dataclass(frozen=True)
class Perturb:
    """What an adversary does to one forward pass.

    embed_BLD: added to the word embeddings (before position, type and LayerNorm).
    attend: Site -> keep map in [0, 1], 1 attended: BLL, shared by all heads, or BHLL; None leaves the layer alone.
        Products where Site.fused allows them.
    last: only so many rows, the last of the pass, are shown to `attend` and attacked; None: all. A clean and an
        attacked pass are one this way, over twice the rows.
    """

    embed_BLD: Tensor | None = None
    attend: Attend | None = None
    last: int | None = None


class Reads(NamedTuple):
    """What of the final states is read.

    rows: positions in the flattened BL, in two dimensions; the model's head gets their states, so arranged.
    firsts: so many of the rows, the last ones, go to Left.first, and to the head only if it is `head_at_firsts`.
    head_whole: the head gets all states as they are, since it may read any; `rows` still go to Left.first.
    """

    rows: Tensor
    firsts: int = 0
    head_at_firsts: bool = False
    head_whole: bool = False


@dataclass
class Left:
    """What the hooks of a pass leave behind.

    first: see Reads. masks: layers' masks, which most of them have in common, with their version, what each lets all
    rows see, and the attacked ones. begun: whether the base model's forward was.
    """

    first: list[Tensor]
    masks: list[tuple[Tensor | None, int | None, Tensor, Keys]]
    begun: bool = False


class Pass(NamedTuple):
    """One forward pass.

    reads: None: the head gets all states as they are. whole: the last block computes all tokens,
    whatever is read. same_dropout: it draws what another pass draws. looked: what is known of the padding mask. once:
    the base model's forward may be called once.
    """

    perturb: Perturb
    tap: Tap | None
    reads: Reads | None
    left: Left
    whole: bool
    same_dropout: bool
    looked: Looked | None = None
    once: bool = False

    @property
    def final_tap(self) -> Tap | None:
        """The tap, if it sees what leaves the last block."""
        return None if isinstance(self.tap, Below) else self.tap

    @property
    def trims(self) -> bool:
        """Whether the last block computes what is read alone, from where it computes each token by itself."""
        reads = self.reads
        return reads is not None and not reads.head_whole and self.final_tap is None and not self.whole


@dataclass
class Signal:
    """How a pass reaches the hooks of a model."""

    now: Pass | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"now": None}  # of a copy made during a pass, to which nobody would tell its end

    @contextmanager
    def during(self, now: Pass | None) -> Generator[None]:
        before, self.now = self.now, now
        try:
            yield
        finally:
            self.now = before
