"""The model card of an export: what the model is, how it came about and how good it is, from the run's own files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asa.methods import OURS, groups_read
from pretrain.config import unread_by

_HEADS = {
    "mlm": "---\nlibrary_name: transformers\npipeline_tag: fill-mask\n---\n\n"
    "# Continually pre-trained masked language model\n\n"
    "Loads with `AutoModelForMaskedLM.from_pretrained`.",
    "rtd": "---\nlibrary_name: transformers\n---\n\n"
    "# Encoder continually pre-trained by replaced-token detection\n\n"
    "Loads with `AutoModel.from_pretrained` and with every class that fine-tunes. `discriminator/` is the same encoder"
    " with the head that tells replaced tokens (ELECTRA: `AutoModelForPreTraining`, others:"
    " `AutoModelForTokenClassification`), `generator/` its generator (`AutoModelForMaskedLM`).",
}  # how a card begins
_ADVERSARY = (
    " `adversary.safetensors` holds its attention adversaries, which the model does not need: a loader that takes every"
    " `*.safetensors` of a folder is to be given `model.safetensors`."
)


def card(facts: Mapping[str, Any], events: list[dict[str, Any]], adversary: bool) -> str:
    """Markdown. Args: facts of the checkpoint; events of the run's record, none where it is not at hand; whether
    adversaries lie beside the model."""
    past = [event for event in events if event.get("step", 0) <= facts["step"]]
    parts = [
        _HEADS[facts["config"]["objective"]] + _ADVERSARY * adversary,
        "## Training\n\n" + _table(_training(facts)),
        "## Method\n\n" + _table(_method(facts["config"])),
    ]
    scores = [event for event in past if event["event"] == "eval"]
    if scores:
        shown = ((name, value) for name, value in scores[-1].items() if name not in ("event", "step"))
        rounded = ((name.replace("_", " "), value and f"{value:.4g}") for name, value in shown)
        parts.append(f"## Held-out scores at step {scores[-1]['step']}\n\n" + _table(rounded))
    environment = next((event["environment"] for event in past if event["event"] == "start"), None)
    if environment:
        parts.append("## Versions\n\n" + _table((name, value) for name, value in environment.items() if _short(value)))
    return "\n\n".join(parts) + "\n"


def _training(facts: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    settings = facts["config"]
    yield "continued from", Path(settings["model"]).name
    yield "data", f"{Path(settings['data']).name}, sha256 of its manifest {facts['inputs']['data']}"
    yield "optimizer steps", f"{facts['step']} of {settings['steps']}"
    if "tokens" in facts:
        yield "tokens, padding of short rows among them", f"{facts['tokens']:,}"
    yield "global batch", settings["global_batch"]
    yield "masking", f"{settings['masking']}, {settings['mask_share']:g} of a row's tokens"
    yield "precision", settings["precision"]
    for name, value in settings["optim"].items():
        yield f"optim.{name}", value
    yield "seed", settings["seed"]


def _method(settings: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The method and, of those the configuration has, the settings that it reads."""
    method = settings["method"]
    yield "objective", settings["objective"]
    yield "method", method
    # One from outside may read all of them; what is given for it by name tells more than everybody's defaults.
    groups = groups_read(method) if method in OURS else ("outside",)
    unread = unread_by(settings["objective"], method)
    for group in (*groups, *(["rtd"] if settings["objective"] == "rtd" else [])):
        for name, value in settings.get(group, {}).items():
            if f"{group}.{name}" in unread:
                continue
            yield f"{group}.{name}", Path(value).name if name == "generator" and value else value


def _short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    # All digits that were given: a beta of 0.99995 is not 1.
    shown = (f"| {name} | {f'{value:.12g}' if isinstance(value, float) else value} |" for name, value in rows)
    return "\n".join(["| | |", "|---|---|", *shown])
