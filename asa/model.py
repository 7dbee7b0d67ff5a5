"""The module that is trained: a Hugging Face task model with its adversaries beside it, one forward for every task."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asa.adversary import Adversaries, ASAConfig
from asa.attention import attach, perturbed
from asa.batch import Batch, Kind
from asa.signal import Perturb, Tap

# B rows, C classes, D width, L length, M masked positions, V vocabulary


@dataclass
class Output:
    """logits: MV (mlm, masked positions only), BC (classification, choice), B1 (regression) or BLC (token).

    cls_BD, cls_logits: the final hidden state at [CLS] and (where ASAConfig.sentence wants it) the head's BV there;
    mlm only.
    """

    logits: Tensor
    cls_BD: Tensor | None = None
    cls_logits: Tensor | None = None

    @cached_property
    def log_probs(self) -> Tensor:
        """log softmax of the logits in fp32, computed once for all losses: over a vocabulary it costs like a layer."""
        return self.logits.float().log_softmax(-1)


class TaskModel(nn.Module):
    """`model` is exported; `adversary` (None where the method needs none) is saved beside it."""

    def __init__(self, model: PreTrainedModel, kind: Kind, asa: ASAConfig | None = None) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        adversaries = attach(model, asa)
        self.adversary: Adversaries | None = adversaries if asa else None
        self.head_at_cls = asa is not None and asa.sentence == "head"

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        """One pass over a micro-batch. tap(layer, h_BLD) sees the input of every self-attention layer."""
        if self.kind == "mlm":
            return self._mlm(batch, perturb, tap)
        with perturbed(self.model, perturb, tap):
            return Output(self.model(**batch.inputs).logits)

    def _mlm(self, batch: Batch, perturb: Perturb | None, tap: Tap | None) -> Output:
        """The head runs on masked rows only: the full head costs 1.22 times a BERT-base step."""
        assert batch.positions is not None
        rows = batch.positions
        if self.head_at_cls:
            length = batch.inputs["input_ids"].shape[1]
            firsts = torch.arange(len(batch.inputs["input_ids"]), device=rows.device) * length
            rows = torch.cat([rows, firsts])
        with perturbed(self.model, perturb, tap, rows) as now:
            logits = self.model(**batch.inputs).logits[0]
        masked = len(batch.positions)
        return Output(logits[:masked], now.first[0], logits[masked:] if self.head_at_cls else None)
