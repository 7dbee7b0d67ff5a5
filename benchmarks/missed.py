"""Cases of a table that could not be measured: they are told under it, and cost the others nothing."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from asa.errors import RequestError, WorkError
from asa.fused import full, told

Missed = dict[str, Exception]  # by case: what stood in its way, without the frames that hold its tensors


@contextmanager
def kept(missed: Missed, label: str) -> Iterator[None]:
    """Inside, what fails is noted of the case `label`: a request that it refuses, memory that is full, a GPU's or a
    process' end."""
    try:
        yield
    except (RequestError, WorkError) as error:
        missed[label] = type(error)(str(error))
    except RuntimeError as error:
        if not full(error):
            traceback.print_exc()
        missed[label] = WorkError(told(error))


def notes(missed: Missed) -> list[str]:
    """What a table says of them."""
    return [f"{label}: not measured ({why})" for label, why in missed.items()]


def check_all(missed: Missed) -> None:
    """Raises what stood in the way of any."""
    if missed:
        raise WorkError(f"not measured: {'; '.join(f'{label} ({why})' for label, why in missed.items())}")


def of_sizes(missed: Mapping[str, Missed]) -> Missed:
    """Of several tables in one. Args: by size of a batch."""
    return {f"{label} of {size}": why for size, found in missed.items() for label, why in found.items()}


def check_some(measured: Mapping[str, object], missed: Missed) -> None:
    """Raises what stood in the way of the first where nothing was measured."""
    if not measured:
        raise next(iter(missed.values()))
