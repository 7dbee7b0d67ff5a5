"""The command `maps`: what each layer attends to in a sentence, what its adversary masks, and what is left.

A picture as ASA's Figures 1 and 6, for any text and any folder that holds a model with its adversary.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from asa import hf
from asa.adversary import FILE as ADVERSARY_FILE
from asa.adversary import saved_config
from asa.attention import attach, perturbed
from asa.biased import fill_empty_rows
from asa.errors import RequestError
from asa.methods.asa import Map, attack
from asa.places import atomic_write, check_file
from asa.signal import Perturb, Site
from finetune.config import MapsConfig
from finetune.report.attention import ENDING, Layer, Maps, paint, save, size, told
from finetune.report.svg import drawn_alike
from finetune.saved import folder_of

# H heads, L length (queries, then keys)


def maps(config: MapsConfig) -> None:
    """Draw `config.out`, and keep its numbers beside it for the report.

    Raises: RequestError for a folder without an adversary, a text too long, or a layer or head that is not there;
        WorkError where the system refuses to write.
    """
    if config.out.suffix not in (".png", ".svg", ".pdf"):
        raise RequestError(f"out = {config.out}: allowed endings .png, .svg, .pdf; set --out")
    numbers = config.out.with_suffix(ENDING)
    for file in (config.out, numbers):
        check_file(file, "--out")
    found = read(config)
    with atomic_write(config.out) as partial, drawn_alike({}), warnings.catch_warnings(record=True) as warned:
        figure = Figure(figsize=size(found), layout="constrained")
        paint(figure, found)
        figure.savefig(partial, dpi=130, format=config.out.suffix[1:])
    save(found, numbers)
    for line in (*told(found), *_undrawn(warned)):
        print(line)
    print(f"written to {config.out} and {numbers}")


def _undrawn(warned: list[warnings.WarningMessage]) -> Iterator[str]:
    """One line for all letters that the picture's font lacks, where matplotlib has two for each; others as they are."""
    missing: dict[str, None] = {}
    for warning in warned:
        if glyph := re.match(r"Glyph (\d+) ", str(warning.message)):
            missing[chr(int(glyph[1]))] = None
        else:
            yield f"note: {warning.message}"
    if missing:
        yield f"note: the picture's font has no {', '.join(missing)}; the file of numbers has them"


def read(config: MapsConfig) -> Maps:
    """The maps of the chosen layers on the text. The attack of a layer reaches those above."""
    own, beside = folder_of(config.model, "--model")[0], config.beside and folder_of(config.beside, "--beside")[0]
    config = replace(config, model=own, beside=beside)
    tokens, inputs = _tokens(config.model, config.text, "--model")
    if not (config.model / ADVERSARY_FILE).is_file():
        raise RequestError(
            f"{config.model} holds no saved adversary ({ADVERSARY_FILE}); give the export of a run with method asa by"
            " --model"
        )
    hf.check_weights(config.model / ADVERSARY_FILE, "--model")
    model = _model(config.model, "--model")
    heads = range(model.config.num_attention_heads)
    if config.head is not None and config.head not in heads:
        raise RequestError(f"head = {config.head}: {config.model} has heads 0 to {heads[-1]}; set --head")
    layers = _layers(model, config, inputs)
    chosen = config.layers or range(len(layers))
    if wrong := [n for n in chosen if not 0 <= n < len(layers)]:
        raise RequestError(f"layers = {wrong[0]}: {config.model} has layers 0 to {len(layers) - 1}; set --layers")
    beside = None if config.beside is None else _beside(config.beside, config, tokens, len(layers))
    shown = {n: layers[n] if beside is None else layers[n]._replace(beside_LL=beside[n]) for n in chosen}
    which = "mean over heads" if config.head is None else f"head {config.head}"
    return Maps(_name(config.model), config.text, which, config.beside and _name(config.beside), tokens, shown)


def _tokens(folder: Path, text: str, flag: str) -> tuple[list[str], dict[str, Tensor]]:
    tokenizer = hf.check_reader(folder, flag)
    with hf.quiet():  # of a text that is too long it would warn; we refuse it
        inputs = dict(tokenizer(text, return_tensors="pt"))
    length = inputs["input_ids"].shape[1]
    hf.check_model(folder, flag, length)
    return [str(tokenizer.convert_ids_to_tokens(i)) for i in inputs["input_ids"][0].tolist()], inputs


def _model(folder: Path, flag: str) -> PreTrainedModel:
    settings: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    with hf.loading(folder, flag):
        model, info = AutoModel.from_pretrained(folder, output_loading_info=True, **settings)
    hf.check_encoder(model, info["missing_keys"], folder, flag)
    return model.eval()


def _beside(folder: Path, config: MapsConfig, tokens: list[str], layers: int) -> list[np.ndarray]:
    """The weights of a second model, of every layer. Raises RequestError where they do not lie beside the first's."""
    own, inputs = _tokens(folder, config.text, "--beside")
    if own != tokens:
        raise RequestError(
            f"beside = {folder}: it splits the text into other tokens; set --beside to a model that does not"
        )
    model = _model(folder, "--beside")
    if config.head is not None and config.head >= (heads := model.config.num_attention_heads):
        raise RequestError(f"head = {config.head}: {folder} has heads 0 to {heads - 1}; set --head or --beside")
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    if len(attentions) != layers:
        raise RequestError(
            f"beside = {folder}: {len(attentions)} layers, the model has {layers}; set --beside to one alike"
        )
    return [_shown(weights[0], config.head) for weights in attentions]


def _name(folder: Path) -> str:
    """The folder's name, or its run's for the folder `model` of a fine-tuning run."""
    path = folder.resolve()
    return path.parent.name if path.name == "model" else path.name


def _shown(weights_HLL: Tensor, head: int | None) -> np.ndarray:
    """LL: of one head, or the mean over heads."""
    return (weights_HLL.mean(0) if head is None else weights_HLL[head]).numpy()


def _layers(model: PreTrainedModel, config: MapsConfig, inputs: dict[str, Tensor]) -> list[Layer]:
    """All layers from the bottom."""
    settings = saved_config(config.model)
    adversary = attach(model, settings)
    adversary.load_pretrained(config.model)
    found: dict[int, Map] = {}
    mask = attack(adversary, [None] * len(adversary), found)
    clean: dict[int, Tensor] = {}
    length = inputs["input_ids"].shape[1]

    def watch(site: Site) -> Tensor:
        clean[site.layer] = site.weights()[0]
        return torch.ones(1, length, length)

    with torch.no_grad():
        with perturbed(model, Perturb(attend=watch)):
            model(**inputs)
        with perturbed(model, Perturb(attend=mask)):
            attacked = model(**inputs, output_attentions=True).attentions
    layers = []
    for n in sorted(clean):
        keep_HLL = _kept(found[n], settings.empty_row == "unmasked")
        seen_LL = found[n].seen_BLL[0].expand(length, length)
        parts = [_shown(part, config.head) for part in (clean[n], keep_HLL.expand_as(clean[n]), attacked[n][0])]
        layers.append(Layer(parts[0], parts[1], parts[2], 1 - parts[1][seen_LL.numpy()].mean().item()))
    return layers


def _kept(found: Map, fill: bool) -> Tensor:
    """HLL, or 1LL for a map that the heads share: where a query would keep nothing, it keeps all."""
    keep = found.keep if found.keep.dim() == 4 else found.keep.unsqueeze(1)
    return (fill_empty_rows(keep, found.seen_BLL.unsqueeze(1)) if fill else keep)[0]
