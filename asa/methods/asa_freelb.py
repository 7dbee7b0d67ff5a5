"""ASA and FreeLB in the same passes: an adversary on the word embeddings and one in every attention layer.

FreeLB takes K passes anyway (asa/methods/freelb.py). The first is the one of its start (the clean batch with start 0)
and is what ASA compares with; in the others the attention adversaries attack too. Each pass trains on task / K, the
attacked ones also on (divergence from the first + penalty) / (K - 1); the perturbation ascends all of it. So the cost
is FreeLB's and the adversaries' scores. In neither paper; ours. What differs from ASA: the first prediction is a fixed
target, since its pass is over by then, and dropout is what `freelb.dropout` says.
"""

import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import Engine
from asa.errors import RequestError
from asa.losses import task_loss
from asa.methods.asa import Maps, costs, ready, shares
from asa.methods.ball import begin, climb, dropout, inside, room
from asa.methods.base import At, Stateless, add
from asa.methods.freelb import FreeLBConfig
from asa.model import Output
from asa.signal import Attend, Perturb

Attack = tuple[Attend, Maps]


class ASAFreeLB(Stateless):
    """Terms are means over the passes they belong to: `task` over all, clean and attacked."""

    uses_adversary = True

    def __init__(self, asa: ASAConfig, freelb: FreeLBConfig) -> None:
        if freelb.passes < 2:
            raise RequestError("method asa_freelb compares passes; set --freelb.passes to 2 or more")
        if freelb.passes - freelb.clean_first < 2 and freelb.start == 0:
            raise RequestError(
                f"method asa_freelb with passes = {freelb.passes}, clean_first and start = 0 is ASA alone: no pass sees"
                " a perturbation of words; raise --freelb.passes or --freelb.start"
            )
        if asa.masked_score == "replaced" and freelb.dropout == "shared":
            raise RequestError(
                "freelb.dropout = shared does not work with asa.masked_score = replaced, which draws its own;"
                " set --freelb.dropout independent or --asa.masked_score shifted"
            )
        self.asa = asa
        self.freelb = inside(freelb)
        self.passes = freelb.passes

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options, where = self.freelb, room(engine, batch)
        delta_RLD = begin(where, options)
        means: dict[str, Tensor] = {}
        first: Output | None = None
        # All before the passes: a pass puts the random state back, and every draw after one would be the same.
        attacks = [None, *(ready(engine, batch, self.asa, dropout=options.dropout) for _ in range(1, self.passes))]
        with dropout(engine, options.dropout, masks=True, taps=False):
            for number in range(self.passes):
                words_RLD = None if options.clean_first and number == 0 else delta_RLD
                out, terms = self._pass(engine, batch, words_RLD, first, attacks[number])
                add(means, terms)
                first = first or _fixed(out)
                if words_RLD is not None and number + 1 < self.passes:
                    delta_RLD = climb(delta_RLD, delta_RLD.grad, where, options)
        loss = torch.stack([mean for name, mean in means.items() if name != "masked_share"]).sum()
        return {"loss": loss, **means}

    def _pass(
        self, engine: Engine, batch: Batch, words_RLD: Tensor | None, first: Output | None, attack: Attack | None
    ) -> tuple[Output, dict[str, Tensor]]:
        """One pass and its backward; without a `first` to compare with, attention is left alone."""
        attend, maps = attack or (None, {})
        out = engine.forward(batch, Perturb(embed_BLD=words_RLD, attend=attend))
        terms = {"task": task_loss(out, batch) / self.passes}
        share: dict[str, Tensor] = {}
        if first:
            attacks = self.passes - 1
            terms |= {name: term / attacks for name, term in costs(first, out, batch, maps, self.asa).items()}
            share = {"masked_share": shares(batch, maps) / attacks}
        engine.backward(torch.stack(list(terms.values())).sum())
        return out, {name: term.detach() for name, term in terms.items()} | share


def _fixed(out: Output) -> Output:
    """A pass's prediction as a constant."""
    cls_BD, cls_logits = (None if t is None else t.detach() for t in (out.cls_BD, out.cls_logits))
    return Output(out.logits.detach(), cls_BD, cls_logits)
