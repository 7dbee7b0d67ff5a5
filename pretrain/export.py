"""Checkpoint -> an ordinary Hugging Face folder, published only after its logits equal the trained module's."""

import copy
import math
import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
)

from asa import checkpoint, hf, manifest, record, rtd
from asa.adversary import ASAConfig
from asa.config import from_dict
from asa.engine import load_parameters
from asa.errors import RequestError, WorkError
from asa.families import family
from asa.model import TaskModel
from asa.places import refusal_told
from asa.portable import save_model, save_tokenizer
from asa.tokenizer import load_tokenizer
from pretrain.card import card
from pretrain.config import ExportConfig

KIND = "export"
PARITY = 1e-5  # largest difference of a logit, absolute


class Part(NamedTuple):
    """One Hugging Face folder of an export: its path below `out`, the trained model, the class that loads it."""

    path: str
    model: PreTrainedModel
    auto: Any


def export(request: ExportConfig) -> float:
    """Make `request.out`; the largest logit difference between the trained module and the reloaded folder.

    Raises: RequestError for a wrong request, WorkError for a damaged checkpoint, logits that differ or a full disk.
    """
    _check_out(request)
    source = checkpoint.find(request.checkpoint, "--checkpoint")
    state, facts = _read(source)
    asa = from_dict(ASAConfig, facts["config"]["asa"]) if "adversary.0.query.weight" in state else None
    trained = _module(source / "hf", facts, asa).eval()
    load_parameters(trained, state)
    parts, tokenizer = _parts(trained), load_tokenizer(source / "hf", "--checkpoint")
    about = card(facts, record.read(_record_of(source)), trained.adversary is not None)
    with refusal_told(request.out), manifest.staging(request.out) as folder:
        with hf.quiet():
            for part in parts:
                save_model(part.model, folder / part.path)
                save_tokenizer(tokenizer, folder / part.path, part.model)
            (folder / "README.md").write_text(about)
            if trained.adversary is not None:
                trained.adversary.save_pretrained(folder)
        differences = [parity(part, folder / part.path) for part in parts]
        # NaN is first then; a maximum alone would hide one behind another part's.
        difference = max(differences, key=lambda one: math.inf if math.isnan(one) else one)
        if not difference <= PARITY:
            raise WorkError(
                f"the exported logits differ from the trained ones by {difference:.1e}, more than {PARITY:g}"
            )
        manifest.write(folder, KIND, {"source": source.resolve().name, "step": facts["step"], "parity": difference})
        _check_out(request)  # saving has taken a while, in which something may have come there
    return difference


def _read(source: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and facts of a checkpoint. Raises: as checkpoint.read_model; where it is damaged, the error names the
    newest of its run that is whole, which nobody wants exported unasked."""
    try:
        return checkpoint.read_model(source, "--checkpoint")
    except WorkError as error:
        others = (one for one in reversed(checkpoint.complete(source.resolve().parent)) if one != source.resolve())
        whole = next((one for one in others if checkpoint.is_good(one)), None)
        if whole is None:
            raise
        raise WorkError(f"{error}; {whole} is whole, export it by --checkpoint {whole}") from None


def _check_out(request: ExportConfig) -> None:
    for folder in (whole := request.out.resolve(), *whole.parents):
        if re.fullmatch(r"step-\d+|step-.*\.partial", folder.name) and folder.parent.name == "checkpoints":
            raise RequestError(f"{request.out} lies among a run's checkpoints, which saving removes; set another --out")
    manifest.replaceable(request.out, KIND, "--out")
    if manifest.taken(request.out) and not request.overwrite:
        raise RequestError(f"{request.out} exists; set --overwrite true to replace it, or another --out")


def _record_of(checkpoint_: Path) -> Path:
    """The record of the run that a checkpoint is in; a copy that lies elsewhere has none."""
    return checkpoint_.resolve().parent.parent / record.NAME


def _module(settings: Path, facts: dict[str, Any], asa: ASAConfig | None) -> TaskModel:
    """The module that was trained, weights arbitrary."""
    if facts["config"]["objective"] == "mlm":
        return TaskModel(hf.new_mlm(settings), "mlm", asa)
    generator = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**facts["generator"]))
    return rtd.ReplacedTokenModel(rtd.new_discriminator(settings), generator, asa)


def _parts(trained: TaskModel) -> list[Part]:
    """What is exported. The folder itself is what one fine-tunes."""
    if not isinstance(trained, rtd.ReplacedTokenModel):
        return [Part(".", trained.model, AutoModelForMaskedLM)]
    return [
        Part("discriminator", trained.model, rtd.discriminator_class(trained.model.config)),
        Part("generator", trained.generator, AutoModelForMaskedLM),
        # Without its head, which has the name and, for regression, the shape of a task's head.
        Part(".", _encoder(trained.model), AutoModel),
    ]


def _encoder(discriminator: PreTrainedModel) -> PreTrainedModel:
    """The discriminator below its head, and no word of its one class, which a task's head would take for its own."""
    encoder = cast(PreTrainedModel, discriminator.base_model)
    encoder.config = copy.deepcopy(encoder.config)
    encoder.config.num_labels = 2
    return encoder


def parity(part: Part, folder: Path) -> float:
    """Largest difference of outputs, over the real tokens of a padded batch, between the trained model and `folder` as
    Hugging Face loads it: logits, or an encoder's final hidden states."""
    with hf.quiet():
        reloaded: PreTrainedModel = part.auto.from_pretrained(folder).eval()
    ids_BL, mask_BL = _probe_rows(part.model.config)
    with torch.no_grad():
        ours, theirs = (model(input_ids=ids_BL, attention_mask=mask_BL)[0] for model in (part.model, reloaded))
    return (ours - theirs)[mask_BL.bool()].abs().max().item()


def _probe_rows(settings: PretrainedConfig) -> tuple[Tensor, Tensor]:
    """Four rows of random ids, three of them padded, and their attention mask."""
    length = min(32, family(settings.model_type).longest(settings))
    generator = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(0, settings.vocab_size, (4, length), generator=generator)
    mask_BL = torch.ones_like(ids_BL)
    mask_BL[1:, length // 2 :] = 0
    return ids_BL, mask_BL
