"""What lines of a record must be like for those who compare, count, draw and go on from what they hold."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asa.errors import WorkError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Line(_Strict):
    event: str


class _Other(_Line):
    step: Annotated[int, Field(ge=0, lt=2**63)] = 0


class _ASA(_Strict):
    tau: float | None = None


class _Config(_Strict):
    asa: _ASA | None = None


class _Start(_Other):
    stage: str | None = None
    seed: int | None = None
    metrics: list[str] | None = None
    config: _Config = _Config()
    inputs: dict[str, Any] = {}
    classes: dict[str, Any] | None = None
    task_facts: dict[str, Any] = {}
    command: Annotated[list[str], Field(min_length=1)] = ["python"]
    environment: dict[str, Any] = {}
    request: dict[str, Any] = {}
    models: list[str] | None = None


class _Step(_Line):
    """Further values of a step are a method's own, which may be of any shape."""

    step: Annotated[int, Field(ge=0, lt=2**63)]
    split: str | None = None


class _Train(_Step):
    task: float | None = None
    tokens_per_s: float | None = None
    masked_share: Annotated[list[float | None], Field(min_length=1)] | None = None


# pydantic's way to say of what type keys are that have no field, which pyright does not know.
class _Eval(_Step):
    __pydantic_extra__: dict[str, float | None] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]


class _Failed(_Other):
    error: str


class _End(_Other):
    __pydantic_extra__: dict[str, float | list[float | None] | None] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]


_KINDS = {"start": _Start, "train": _Train, "eval": _Eval, "failed": _Failed, "end": _End}


def check(events: list[dict[str, Any]], path: Path) -> None:
    """Raises: WorkError for the first line that no run writes so, for a record that does not begin with its start, and
    for one that has a second."""
    for number, event in enumerate(events, start=1):
        if (found := wrong(event)) is None and (event["event"] == "start") != (number == 1):
            found = "the record's start is missing before it" if number == 1 else "another record begins there"
        if found is not None:
            raise WorkError(f"line {number} of {path} is damaged ({found}); restore the file, or remove the run")


def wrong(event: dict[str, Any]) -> str | None:
    """What about a line its readers could not take."""
    name = event.get("event")
    try:
        _KINDS.get(name if isinstance(name, str) else "", _Other).model_validate(event)
    except ValidationError as error:
        found = error.errors()[0]
        place = " ".join(".".join(str(part) for part in found["loc"]).split())
        return f"{place}: {found['msg'][0].lower()}{found['msg'][1:]}"
    return None
