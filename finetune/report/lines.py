"""What the lines of a record must be like for the report, which compares, counts and draws what they hold."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from asa.errors import WorkError


class _Line(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    event: str


class _ASA(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    tau: float | None = None


class _Config(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    asa: _ASA | None = None


class _Start(_Line):
    stage: str | None = None
    seed: int | None = None
    metrics: list[str] | None = None
    config: _Config = _Config()
    inputs: dict[str, Any] = {}
    classes: dict[str, Any] | None = None
    task_facts: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None


class _Step(_Line):
    step: int


_KINDS = {"start": _Start, "train": _Step, "eval": _Step}


def check(events: list[dict[str, Any]], path: Path) -> None:
    """Raises: WorkError for the first line that no run writes so, or that begins a second record in the file."""
    for number, event in enumerate(events, start=1):
        name = event.get("event")
        try:
            _KINDS.get(name if isinstance(name, str) else "", _Line).model_validate(event)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            told = f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}"
        else:
            if name != "start" or number == 1:
                continue
            told = "another record begins there"
        raise WorkError(f"line {number} of {path} is damaged ({told}); restore the file, or remove the run")
