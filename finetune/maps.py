"""The command `maps`: what each layer attends to in a sentence, what its adversary masks, and what is left.

A picture as the paper's Figure 6, for any text and any folder that `pretrain export` wrote.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoModel

from asa import hf
from asa.adversary import saved_config
from asa.attention import attach, perturbed
from asa.biased import fill_empty_rows
from asa.errors import RequestError
from asa.methods.asa import Map, attack
from asa.signal import Perturb, Site
from finetune.config import MapsConfig

# L length (queries, then keys)

PANELS = ("attention", "kept by the adversary", "attention under attack")


class Layer(NamedTuple):
    """Weights without attack, keep map and weights under attack of one layer, averaged over heads.

    masked: share of the pairs the layer sees at all that the map masks.
    """

    clean_LL: Tensor
    keep_LL: Tensor
    attacked_LL: Tensor
    masked: float


def maps(config: MapsConfig) -> None:
    """Draw `config.out`. Raises RequestError for a folder without an adversary or a text too long."""
    if config.out.suffix not in (".png", ".svg", ".pdf"):
        raise RequestError(f"out = {config.out}: allowed endings .png, .svg, .pdf; set --out")
    tokens, layers = read(config.model, config.text)
    chosen = range(len(layers)) if config.layers is None else config.layers
    if wrong := [n for n in chosen if not 0 <= n < len(layers)]:
        raise RequestError(f"layers = {wrong[0]}: {config.model} has layers 0 to {len(layers) - 1}; set --layers")
    config.out.parent.mkdir(parents=True, exist_ok=True)
    draw(tokens, {n: layers[n] for n in chosen}).savefig(config.out, dpi=130, bbox_inches="tight")
    for n in chosen:
        print(f"layer {n}: {layers[n].masked:.1%} of the pairs masked")
    print(f"written to {config.out}")


def read(folder: Path, text: str) -> tuple[list[str], list[Layer]]:
    """Tokens and, for every layer from the bottom, its maps on the text. The attack of a layer reaches those above."""
    hf.check_model(folder, "--model")
    tokenizer = hf.load_tokenizer(folder, "--model")
    inputs = tokenizer(text, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    hf.check_model(folder, "--model", length)
    with hf.quiet():
        model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    settings = saved_config(folder)
    adversary = attach(model, settings)
    adversary.load_pretrained(folder)
    found: dict[int, Map] = {}
    mask = attack(adversary, [None] * len(adversary), found)
    clean: dict[int, Tensor] = {}

    def watch(site: Site) -> Tensor:
        clean[site.layer] = site.weights()[0].mean(0)
        return torch.ones(1, length, length)

    with torch.no_grad():
        with perturbed(model, Perturb(attend=watch)):
            model(**inputs)
        with perturbed(model, Perturb(attend=mask)):
            attacked = model(**inputs, output_attentions=True).attentions
    kept = {n: _kept(one, settings.empty_row == "unmasked") for n, one in found.items()}
    seen = {n: one.seen_BLL[0].expand(length, length) for n, one in found.items()}
    layers = [
        Layer(clean[n], kept[n], attacked[n][0].mean(0), 1 - kept[n][seen[n]].mean().item()) for n in sorted(clean)
    ]
    return [str(tokenizer.convert_ids_to_tokens(i)) for i in inputs["input_ids"][0].tolist()], layers


def _kept(found: Map, fill: bool) -> Tensor:
    """What the layer attends under, averaged over heads: where a query would keep nothing, it keeps all."""
    keep = found.keep if found.keep.dim() == 4 else found.keep.unsqueeze(1)
    keep = fill_empty_rows(keep, found.seen_BLL.unsqueeze(1)) if fill else keep
    return keep[0].mean(0)


def draw(tokens: list[str], layers: dict[int, Layer]) -> Figure:
    """One row of three panels per layer; rows of a panel are queries, columns keys."""
    side = max(2.6, 0.19 * len(tokens))
    figure, axes = plt.subplots(len(layers), 3, figsize=(3 * side, len(layers) * side), squeeze=False)
    for row, (n, layer) in zip(axes, layers.items(), strict=True):
        for axis, panel, values_LL in zip(row, PANELS, layer[:3], strict=True):
            colours = "Greys" if panel == PANELS[1] else "viridis"
            axis.imshow(values_LL.numpy(), vmin=0, vmax=1 if panel == PANELS[1] else None, cmap=colours)
            axis.set_title(f"layer {n}: {panel}", fontsize=8)
            axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
            axis.set_yticks(range(len(tokens)), tokens, fontsize=6)
    figure.tight_layout()
    return figure
