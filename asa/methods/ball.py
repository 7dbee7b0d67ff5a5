"""What the methods share that climb the loss inside a ball around the word embeddings."""

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Literal, TypeVar

from pydantic import Field
from torch import Tensor, nn

from asa import perturb
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine, Precision
from asa.errors import RequestError
from asa.parts import bare
from asa.perturb import Ball, Room

# L length, D width of the word embeddings, R sequences

HALF_SIZE = 1e-2  # a perturbation's least size of which bf16 and fp16 leave enough to follow its gradient

Size = Annotated[float, Field(ge=0, le=1e4)]
Dropout = Literal["shared", "independent"]


@config
class BallConfig:
    """A perturbation of the word embeddings (before position, type and LayerNorm), found by gradient ascent."""

    ball: Ball = "l2"
    """Norm of an example's perturbation, over all its tokens: l2 or linf. Gradients are divided by the same norm."""
    radius: Size | None = 0.1
    """Largest norm after an ascent, in units of the embeddings; null: no bound. The start is not projected."""
    step_size: Size = 0.1
    """Norm of one ascent step."""
    start: Size = 0.0
    """Size of the random start: below it lies its norm (l2) or each entry (linf); `radius` at most. 0 starts at the
    clean batch."""


Options = TypeVar("Options", bound=BallConfig)


def inside(options: Options) -> Options:
    """Its argument, for every method that climbs when it is built: a config is read before a preset widens its ball.

    Raises: RequestError for a start outside the ball, which means nothing: the first ascent would throw most of it
    away.
    """
    if options.radius is not None and options.start > options.radius:
        group = type(options).__name__.removesuffix("Config").lower()
        raise RequestError(
            f"{group}.start = {options.start:g} is outside the ball, allowed: 0 <= start <= radius, which is"
            f" {options.radius:g}; lower --{group}.start or raise --{group}.radius"
        )
    return options


def check_sizes(sizes: dict[str, float], precision: Precision) -> None:
    """Args: sizes, by flag, of the perturbations whose prediction is compared with the clean one, or from which the
    ascent starts. Raises: RequestError for one that half precision rounds away."""
    small = {} if precision == "fp32" else {flag: size for flag, size in sizes.items() if size < HALF_SIZE}
    for flag, size in small.items():
        raise RequestError(
            f"{flag} = {size:g} drowns in the rounding of {precision}, allowed there: {HALF_SIZE:g} <= {flag};"
            f" raise --{flag}, or train in fp32 (--precision fp32)"
        )


def room(engine: Engine, batch: Batch) -> Room:
    """Where the perturbations of this batch live."""
    words: nn.Embedding = bare(engine.module.model.get_input_embeddings())
    # The field and not the weight's shape: ZeRO 3 leaves an empty weight behind.
    return Room(~batch.pad_BL, len(batch.inputs["input_ids"]), words.embedding_dim)


def begin(where: Room, options: BallConfig) -> Tensor:
    """The first perturbation, RLD, a leaf that takes a gradient."""
    return perturb.start(where, options.start, options.ball).requires_grad_()


def climb(delta_RLD: Tensor, gradient_RLD: Tensor | None, where: Room, options: BallConfig) -> Tensor:
    """The next perturbation: one step up, back into the ball; a leaf that takes a gradient."""
    assert gradient_RLD is not None
    found_RLD = perturb.ascended(delta_RLD, gradient_RLD, where, options.ball, options.step_size, options.radius)
    return found_RLD.requires_grad_()


def dropout(engine: Engine, mode: Dropout, masks: bool = False, taps: bool = True) -> AbstractContextManager[None]:
    """Inside, all passes have the same dropout masks (FreeLB, section 3.3), or each its own. Args: masks tells that
    some of them attack attention, taps is False where none has a tap of the final states."""
    return engine.same_dropout(masks, taps) if mode == "shared" else nullcontext()
