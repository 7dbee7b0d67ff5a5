"""Replaced-token detection (Clark et al. 2020, ELECTRA, arXiv 2003.10555, section 2).

A generator, a masked language model, fills masked tokens with samples of its own; the discriminator, which is the model
one wants, tells for every token whether it is the original. What differs from the paper: its loss weight of 50 on the
discriminator is 1/50 on the generator here (AdamW sees the ratio alone), and the masks are those of plain MLM.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AutoModelForPreTraining,
    AutoModelForTokenClassification,
    PreTrainedConfig,
)

from asa.adversary import ASAConfig
from asa.attention import attach
from asa.batch import IGNORE, Batch
from asa.errors import RequestError
from asa.hf import LOADED, check_encoder, loading, new_weights, read_config
from asa.model import Output, TaskModel, masked_lm
from asa.signal import Perturb, Tap
from asa.typed import fork_rng, manual_seed

# B rows, L length, M masked positions, V vocabulary

ORIGINAL, REPLACED = 0, 1  # classes of the discriminator


class Discriminator(TaskModel):
    """One score per token, read as two classes, so that losses and divergences of token tasks apply as they are."""

    def __init__(self, model: "transformers.PreTrainedModel", asa: ASAConfig | None = None) -> None:
        super().__init__(model, "token", asa)

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        """logits: BL2, of original (always 0) and replaced."""
        # ElectraForPreTraining gives BL, token classification with one class BL1.
        score_BL = super().forward(batch, perturb, tap).logits.view(batch.inputs["input_ids"].shape)
        return Output(torch.stack([torch.zeros_like(score_BL), score_BL], dim=-1))

    def twin(self) -> "Discriminator":
        with fork_rng(devices=[]):  # the wrapper's adversaries are drawn and thrown away
            return Discriminator(super().twin().model).eval()


class ReplacedTokenModel(Discriminator):
    """Discriminator (`model`, which methods and adversaries see) and generator, their embeddings tied.

    A batch of kind "mlm" is read by the generator, one of kind "token" by the discriminator.
    """

    def __init__(
        self,
        discriminator: "transformers.PreTrainedModel",
        generator: "transformers.PreTrainedModel",
        asa: ASAConfig | None = None,
    ) -> None:
        """Raises: RequestError for a generator whose word embeddings have another shape."""
        super().__init__(discriminator, asa)
        tie_embeddings(discriminator, generator)
        attach(generator)
        self.generator = generator

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        """logits: MV of the generator, or BL2 (original, replaced) of the discriminator."""
        if batch.kind == "mlm":
            return masked_lm(self.generator, batch, perturb, tap)
        return super().forward(batch, perturb, tap)


def tie_embeddings(discriminator: "transformers.PreTrainedModel", generator: "transformers.PreTrainedModel") -> None:
    """Give the generator the discriminator's word embeddings; of its own family also position and type tables of the
    same shape. Its output layer follows where its config ties the two.

    Raises: RequestError where the word embeddings differ in shape.
    """
    check_pair(discriminator.config, generator.config)
    generator.set_input_embeddings(discriminator.get_input_embeddings())
    if discriminator.config.model_type == generator.config.model_type:
        own = generator.base_model.get_submodule("embeddings")
        for name, table in discriminator.base_model.get_submodule("embeddings").named_children():
            before = getattr(own, name, None)
            if isinstance(table, nn.Embedding) and before is not None and before.weight.shape == table.weight.shape:
                setattr(own, name, table)
    generator.tie_weights()


def check_pair(discriminator: PreTrainedConfig, generator: PreTrainedConfig) -> None:
    """Raises RequestError unless the two can share word embeddings."""
    (ids, width), (its_ids, its_width) = _embedding_shape(discriminator), _embedding_shape(generator)
    if ids != its_ids:
        raise RequestError(f"the generator has embeddings for {its_ids} ids, the model for {ids}; set --rtd.generator")
    if width != its_width:
        raise RequestError(
            f"the generator's embeddings are {its_width} wide, the model's {width}, and they are shared;"
            f" set --rtd.generator"
        )


def _embedding_shape(config: PreTrainedConfig) -> tuple[int, int]:
    return config.vocab_size, getattr(config, "embedding_size", None) or config.hidden_size


def sample(log_probs_MV: Tensor, pad: int | None) -> Tensor:
    """One id per row, M, drawn from its distribution; no gradient. The draw follows torch's seed. Never the id `pad`:
    RoBERTa's kind counts positions by it.

    By the inverse of the cumulative distribution: one random number per row instead of V, and no wait for the device,
    which torch.multinomial makes to check its input. Of a row that is not finite the draw means nothing, but it is an
    id: the step goes on to where its loss is found out and the update is not made.
    """
    with torch.no_grad():
        probs_MV = log_probs_MV.exp()
        if pad is not None:
            probs_MV[:, pad] = 0
        reached_MV = probs_MV.cumsum(-1)
        # In (0, 1]: at 0 an id of no probability would be drawn.
        drawn_M1 = 1 - torch.rand(len(reached_MV), 1, device=reached_MV.device)
        found_M1 = torch.searchsorted(reached_MV, drawn_M1 * reached_MV[:, -1:])
        return found_M1.squeeze(-1).clamp_max(reached_MV.shape[-1] - 1)


def replace_tokens(masked: Batch, sampled_M: Tensor, total_labels: int) -> Batch:
    """The discriminator's batch, of kind "token": `sampled_M` stand at the masked positions.

    Every real token is labelled, special ones too, as in ELECTRA; those are never masked, so they are originals. So is
    a sample that hits the original. Args: total_labels are the real tokens of the whole optimizer step.
    """
    assert masked.positions is not None
    ids_BL = masked.inputs["input_ids"].clone()
    ids_BL.view(-1)[masked.positions] = sampled_M
    labels_BL = torch.full_like(ids_BL, ORIGINAL).masked_fill(masked.pad_BL, IGNORE)
    labels_BL.view(-1)[masked.positions] = (sampled_M != masked.labels).long() * REPLACED
    inputs = masked.inputs | {"input_ids": ids_BL}
    return replace(masked, kind="token", inputs=inputs, labels=labels_BL, positions=None, total_labels=total_labels)


def load_discriminator(folder: Path, seed: int) -> tuple["transformers.PreTrainedModel", list[str]]:
    """The discriminator in `folder` and the names of parameters it lacked, which are new and drawn from `seed`.

    ELECTRA has a class of its own; other families get token classification with one class.
    """
    manual_seed(seed)
    with loading(folder, "--model"):
        model, info = discriminator_class(read_config(folder)).from_pretrained(
            folder, num_labels=1, ignore_mismatched_sizes=True, **LOADED
        )
    new = new_weights(info)
    check_encoder(model, new, folder, "--model")
    return model, new


def new_discriminator(folder: Path) -> "transformers.PreTrainedModel":
    """A discriminator of the architecture in `folder`, weights arbitrary."""
    config = read_config(folder)
    return discriminator_class(config).from_config(config)


def discriminator_class(config: PreTrainedConfig) -> Any:
    return AutoModelForPreTraining if config.model_type == "electra" else AutoModelForTokenClassification
