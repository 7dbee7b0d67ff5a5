"""The module that is trained: a Hugging Face task model with its adversaries beside it, one forward for every task."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import torch
import transformers
from torch import Tensor, nn

from asa.adversary import Adversaries, ASAConfig
from asa.attention import attach, has_stock_head, perturbed, settings, trimmed
from asa.batch import Batch, Kind
from asa.errors import RequestError
from asa.signal import Perturb, Reads, Tap
from asa.stock import around, head_altered
from asa.typed import fork_rng

# B rows, C classes or choices, D width, L length, M masked positions, V vocabulary

ABSENT = -1e4  # logit of an answer that a question does not have


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
        """log softmax of the logits in fp32, computed once for all that want it (fused losses do not): over a
        vocabulary it costs like a layer."""
        return self.logits.float().log_softmax(-1)

    def halves(self) -> tuple["Output", "Output"]:
        """Of a pass over the same rows twice, each turn's."""
        logits = self.logits.chunk(2)
        cls = (None, None) if self.cls_BD is None else self.cls_BD.chunk(2)
        head = (None, None) if self.cls_logits is None else self.cls_logits.chunk(2)
        return Output(logits[0], cls[0], head[0]), Output(logits[1], cls[1], head[1])


def joined(first: Output, second: Output) -> Output:
    """Two passes over the same rows as one over them twice: what Output.halves takes apart."""
    return Output(
        torch.cat([first.logits, second.logits]),
        _cat(first.cls_BD, second.cls_BD),
        _cat(first.cls_logits, second.cls_logits),
    )


def _cat(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None:
        return None
    assert other is not None, "two passes of one model"
    return torch.cat([one, other])


class TaskModel(nn.Module):
    """`model` is exported; `adversary` (None where the method needs none) is saved beside it. Another TaskModel of the
    same model attaches it anew; where its settings of attention differ, this one no longer attacks. Of `asa` it reads
    what says how attention is attacked (asa.adversary.OF_MODEL), in which the method's settings must be the same; what
    that costs, as tau and the divergence, the method's alone say."""

    same_dropout = False  # True while passes with and without masks are given the same random state
    whole = False  # True while passes with and without a tap of final states are: then none leaves anything out

    def __init__(self, model: "transformers.PreTrainedModel", kind: Kind, asa: ASAConfig | None = None) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise RequestError(f"kind = {kind!r}: allowed: {', '.join(get_args(Kind))}")
        self.model = model
        self.kind: Kind = kind
        adversaries = attach(model, asa)
        self.adversary: Adversaries | None = adversaries if asa else None
        self._settings = _of_attention(asa or ASAConfig())
        self.head_at_cls = asa is not None and asa.sentence == "head"
        # A head that is replaced later may read anything.
        self._head = around(model) if reads_first(model) else None

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        """One pass over a micro-batch. tap(n, h_BLD) sees what enters block n, and at last what leaves the model.

        Raises: RequestError for a batch of another kind, for an attack of attention by other settings than this
        TaskModel's, and where the model of a pass that is attacked or seen runs its encoder twice.
        """
        if batch.kind != self.kind:
            raise RequestError(f"a batch of kind {batch.kind!r} for a TaskModel of kind {self.kind!r}; give both one")
        if perturb is not None and perturb.attend is not None:
            self._check_settings()
        if self.kind == "mlm":
            return masked_lm(
                self.model,
                batch,
                perturb,
                tap,
                head_at_cls=self.head_at_cls,
                whole=self.whole,
                same_dropout=self.same_dropout,
            )
        # Only a mask can tell that an answer is absent.
        fills = self.kind == "choice" and batch.inputs.get("attention_mask") is not None
        shown = _with_answers(batch) if fills else batch
        with perturbed(
            self.model,
            perturb,
            tap,
            reads=self._reads(batch),
            whole=self.whole,
            same_dropout=self.same_dropout,
            looked=shown.looked,
            once=True,
        ):
            logits = _logits(self.model(**shown.inputs))
        if fills:
            # Finite, so that differences of log probabilities stay numbers; within FP16's range.
            logits = logits.masked_fill(_absent(batch), ABSENT)
        return Output(logits)

    def _check_settings(self) -> None:
        now = settings(self.model)
        if now is not None and _of_attention(now) != self._settings:
            raise RequestError(
                f"the model was attached anew with {_of_attention(now)}, and this TaskModel was built with"
                f" {self._settings}; go on with the one built last, or build this one again"
            )

    def _reads(self, batch: Batch) -> Reads | None:
        known = self._head is not None and self._head == around(self.model) and not head_altered(self.model)
        return Reads(_starts(batch).unsqueeze(1)) if known and "input_ids" in batch.inputs else None

    def twin(self) -> "TaskModel":
        """Another model of the same shape without adversaries, in fp32 and evaluation mode; weights arbitrary.

        Not by copy.deepcopy, which would follow an engine's hooks into the engine. No random number of ours is drawn.
        """
        with fork_rng(devices=[]):
            model = getattr(self.model, "_orig_mod", self.model)  # inside of what torch.compile puts around it
            twin = type(model)(copy.deepcopy(model.config))
            _tie_alike(model, twin)
            return TaskModel(twin, self.kind).float().eval()


def _of_attention(config: ASAConfig) -> str:
    """What attention itself knows of the settings of an attack."""
    return f"masked_score {config.masked_score}, empty_row {config.empty_row}"


def _tie_alike(model: nn.Module, twin: nn.Module) -> None:
    """Share in `twin` what `model` shares: transformers ties a bias of a head when it is resized, and not before."""
    first: dict[int, str] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        name = name.replace("_orig_mod.", "")  # of parts that torch.compile has wrapped
        shared = first.setdefault(id(p), name)
        place, _, leaf = name.rpartition(".")
        if shared == name:
            continue
        try:
            part = twin.get_submodule(place)
        except AttributeError:  # the model has a second name for a part
            raise RequestError(f"a model of this class and config has no {place}") from None
        if hasattr(part, leaf):
            setattr(part, leaf, twin.get_parameter(shared))


def reads_first(model: "transformers.PreTrainedModel") -> bool:
    """Whether the head of an attached model reads each row's first final state alone, as Hugging Face's for sequences
    do, and the last block leaves out the others."""
    kinds: tuple[Any, ...] = (
        transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        transformers.MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
    )
    of_sequences = any(type(model) is kind.get(type(model.config), None) for kind in kinds)
    # ELECTRA's head of multiple choice may read another token, or all.
    elsewhere = any(getattr(part, "summary_type", "first") != "first" for part in model.modules())
    return of_sequences and not elsewhere and trimmed(model)


def _logits(output: Any) -> Tensor:
    """Raises RequestError for a model of one's own that gives them under no name."""
    found = getattr(output, "logits", None)
    if found is None:
        raise RequestError(f"the model returns a {type(output).__name__} without logits; let what it returns have them")
    return found


def _starts(batch: Batch) -> Tensor:
    """Where each row begins in the flattened BL."""
    ids_BL = batch.ids.flatten(0, -2)
    return torch.arange(len(ids_BL), device=ids_BL.device) * ids_BL.shape[1]


def _absent(batch: Batch) -> Tensor:
    """BC: True at an answer that a question does not have, a sequence of padding alone."""
    return (batch.inputs["attention_mask"] == 0).all(-1)


def _with_answers(batch: Batch) -> Batch:
    """With something to attend to in absent answers as well: attention to nothing at all would be 0 / 0."""
    mask_BCL = batch.inputs["attention_mask"].clone()
    mask_BCL[..., 0].masked_fill_(_absent(batch), 1)
    return replace(batch, inputs=batch.inputs | {"attention_mask": mask_BCL}).marked(batch.padded)


def masked_lm(
    model: "transformers.PreTrainedModel",
    batch: Batch,
    perturb: Perturb | None = None,
    tap: Tap | None = None,
    *,
    head_at_cls: bool = False,
    whole: bool = False,
    same_dropout: bool = False,
) -> Output:
    """A pass of an attached masked-LM model over a batch of kind "mlm".

    Hugging Face's heads run on masked rows only: the full head costs 1.22 times a BERT-base step. Another head may read
    any token, and runs on all.
    """
    if batch.positions is None:
        raise RequestError("a batch of kind mlm has no positions; give the masked tokens' places in the flattened ids")
    firsts_B = _starts(batch) + (~batch.pad_BL).int().argmax(1)  # [CLS], which left padding moves
    stock = has_stock_head(model)
    rows = torch.cat([batch.positions, firsts_B])
    if stock:
        reads = Reads(rows.unsqueeze(0), len(firsts_B), head_at_cls)
    else:
        reads = Reads(firsts_B.unsqueeze(0), len(firsts_B), head_whole=True)
    with perturbed(
        model, perturb, tap, reads=reads, whole=whole, same_dropout=same_dropout, looked=batch.looked, once=True
    ) as now:
        logits = _logits(model(**batch.inputs))
    # Not by an index, whose gradient would be a copy among zeros as large as the logits.
    of_rows = logits.squeeze(0) if stock else logits.flatten(0, -2)[rows if head_at_cls else batch.positions]
    if not head_at_cls:
        return Output(of_rows, now.left.first[0])
    masked, firsts = of_rows.split_with_sizes((len(batch.positions), len(firsts_B)))
    return Output(masked, now.left.first[0], firsts)
