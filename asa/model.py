"""The module that is trained: a Hugging Face task model with its adversaries beside it, one forward for every task."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn
from transformers import PreTrainedModel

from asa.adversary import Adversaries, ASAConfig
from asa.attention import Perturb, Signal, Tap, attach, family
from asa.batch import Batch, Kind

# B rows, C classes, D width, L length, M masked positions, V vocabulary


@dataclass
class Output:
    """logits: MV (mlm, masked positions only), BC (classification, choice), B1 (regression) or BLC (token).

    cls_BD: the final hidden state at [CLS]; mlm only.
    """

    logits: Tensor
    cls_BD: Tensor | None = None

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

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        """One pass over a micro-batch. tap(layer, h_BLD) sees the input of every self-attention layer."""
        signal = Signal(batch.pad_BL, perturb.attend if perturb else None, tap)
        delta = perturb.embed_BLD if perturb else None
        with self._shifted_embeddings(delta):
            if self.kind == "mlm":
                return self._mlm(batch, signal)
            return Output(self.model(**batch.inputs, asa=signal).logits)

    def _mlm(self, batch: Batch, signal: Signal) -> Output:
        """The head runs on masked rows only: the full head costs 1.22 times a BERT-base step."""
        hidden_BLD = self.model.base_model(**batch.inputs, asa=signal).last_hidden_state
        masked_MD = hidden_BLD.flatten(0, 1)[batch.positions]
        logits_MV = self.model.get_submodule(family(self.model.config.model_type).mlm_head)(masked_MD)
        return Output(logits_MV, hidden_BLD[:, 0])

    @contextmanager
    def _shifted_embeddings(self, delta_BLD: Tensor | None) -> Iterator[None]:
        """Add delta to the word embeddings. A hook, since inputs_embeds would change how positions are counted."""
        if delta_BLD is None:
            yield
            return

        def shift(module: nn.Module, args: tuple[Tensor, ...], words_BLD: Tensor) -> Tensor:
            return words_BLD + delta_BLD

        handle = self.model.get_input_embeddings().register_forward_hook(shift)
        try:
            yield
        finally:
            handle.remove()
