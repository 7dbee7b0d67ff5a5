"""What is learnt: masked tokens (mlm), or which tokens a generator has replaced (rtd). Methods do not know which.

An objective builds the module, turns the masked micro-batches of a step into those that the method gets, and scores
the clean module on held-out rows.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, cast

import torch
from torch import Tensor

from asa import dist, hf, rtd
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import Engine
from asa.losses import task_loss
from asa.methods.base import add
from asa.model import TaskModel
from pretrain.config import PretrainConfig

Terms = dict[str, Tensor]
Beat = Callable[[], None]  # the watchdog's, after each micro-batch that took work


class Objective(Protocol):
    """Terms and counts are sums over a micro-batch divided by totals, so that over micro-batches and ranks they add up
    to means."""

    def build(self, config: PretrainConfig, asa: ASAConfig | None) -> tuple[TaskModel, list[str]]:
        """The module, and a line for each folder that lacked parameters."""
        ...

    def prepare(self, engine: Engine, window: list[Batch], beat: Beat) -> tuple[list[Batch], Terms]:
        """The method's micro-batches of a step, and terms of the losses that are already backwarded."""
        ...

    def count(self, engine: Engine, batch: Batch) -> Terms:
        """What `scores` needs of one held-out micro-batch."""
        ...

    def scores(self, counts: dict[str, float]) -> dict[str, float]:
        """Held-out figures from the summed counts."""
        ...


class MaskedLM:
    """Devlin et al. 2019: the method's batch is the masked batch."""

    def build(self, config: PretrainConfig, asa: ASAConfig | None) -> tuple[TaskModel, list[str]]:
        model, new = hf.load_mlm(config.model, config.seed)
        torch.manual_seed(config.seed)
        return TaskModel(model, "mlm", asa), _drawn(f"{config.model}", new, config.seed)

    def prepare(self, engine: Engine, window: list[Batch], beat: Beat) -> tuple[list[Batch], Terms]:
        return window, {}

    def count(self, engine: Engine, batch: Batch) -> Terms:
        out = engine.probe(batch)
        right = (out.logits.argmax(-1) == batch.labels).sum()
        loss = task_loss(out, batch) if len(batch.labels) else out.logits.sum()
        return {"heldout_loss": loss, "heldout_accuracy": right / batch.total_labels}

    def scores(self, counts: dict[str, float]) -> dict[str, float]:
        return counts


def _pad(engine: Engine) -> int | None:
    return getattr(engine.module.model.config, "pad_token_id", None)


class ReplacedTokens:
    """Clark et al. 2020: the generator learns the masked batch; the method gets its samples, for the discriminator."""

    def __init__(self, generator_weight: float) -> None:
        self.weight = generator_weight

    def build(self, config: PretrainConfig, asa: ASAConfig | None) -> tuple[TaskModel, list[str]]:
        source = config.rtd.generator or config.model
        discriminator, new = rtd.load_discriminator(config.model, config.seed)
        generator, more = hf.load_mlm(source, config.seed, "--rtd.generator")
        lines = [*_drawn(f"{config.model}", new, config.seed), *_drawn(f"generator {source}", more, config.seed)]
        mine, its = (cast(Tensor, model.get_input_embeddings().weight) for model in (discriminator, generator))
        if not torch.equal(mine, its):
            lines.append(f"generator {source}: its word embeddings give way to those of {config.model}")
        torch.manual_seed(config.seed)
        return rtd.ReplacedTokenModel(discriminator, generator, asa), lines

    def prepare(self, engine: Engine, window: list[Batch], beat: Beat) -> tuple[list[Batch], Terms]:
        """One backward of the generator's loss for each micro-batch."""
        tokens = int(dist.all_reduce_(torch.stack([batch.inputs["attention_mask"].sum() for batch in window]).sum()))
        prepared: list[Batch] = []
        terms: Terms = {}
        for batch in window:
            out = engine.forward(batch)
            loss = task_loss(out, batch)
            engine.backward(self.weight * loss)
            with torch.no_grad():  # fused losses have left the distributions to be made here
                sampled_M = rtd.sample(out.log_probs, _pad(engine))
            prepared.append(rtd.replace_tokens(batch, sampled_M, tokens))
            loss, replaced = loss.detach(), (prepared[-1].labels == rtd.REPLACED).sum() / tokens
            add(terms, {"loss": self.weight * loss, "generator": loss, "replaced": replaced})
            beat()
        return prepared, terms

    def count(self, engine: Engine, batch: Batch) -> Terms:
        masked = engine.probe(batch)
        tokens = rtd.replace_tokens(batch, rtd.sample(masked.log_probs, _pad(engine)), total_labels=1)
        out = engine.probe(tokens)
        belief_BL = out.log_probs[..., rtd.REPLACED].exp()
        replaced_BL, original_BL = tokens.labels == rtd.REPLACED, tokens.labels == rtd.ORIGINAL
        counts = {
            "loss": task_loss(out, tokens),
            "replaced": replaced_BL.sum(),
            "original": original_BL.sum(),
            "hits": ((belief_BL > 0.5) & replaced_BL).sum(),
            "alarms": ((belief_BL > 0.5) & original_BL).sum(),
            "belief_replaced": (belief_BL * replaced_BL).sum(),
            "belief_original": (belief_BL * original_BL).sum(),
            "generator_loss": task_loss(masked, batch),
            "generator_right": (masked.logits.argmax(-1) == batch.labels).sum() / batch.total_labels,
        }
        # A batch without a masked token only keeps the ranks together: its row is another batch's.
        return counts if len(batch.labels) else {name: torch.zeros_like(value) for name, value in counts.items()}

    def scores(self, counts: dict[str, float]) -> dict[str, float]:
        """Most tokens are originals, so accuracy flatters. Recall and precision are of the replaced ones; separation is
        their mean probability of being called replaced minus that of originals (Tjur's coefficient of
        discrimination: 0 knows nothing, 1 all), which moves long before a probability passes one half. A ratio of
        nothing is 0."""
        hits, alarms, replaced, original = (counts[name] for name in ("hits", "alarms", "replaced", "original"))
        tokens = replaced + original
        beliefs = _ratio(counts["belief_replaced"], replaced), _ratio(counts["belief_original"], original)
        return {
            "heldout_loss": counts["loss"] / tokens,
            "heldout_accuracy": (hits + original - alarms) / tokens,
            "heldout_separation": beliefs[0] - beliefs[1],
            "heldout_recall": _ratio(hits, replaced),
            "heldout_precision": _ratio(hits, hits + alarms),
            "heldout_replaced": replaced / tokens,
            "heldout_generator_loss": counts["generator_loss"],
            "heldout_generator_accuracy": counts["generator_right"],
        }


def objective_of(config: PretrainConfig) -> Objective:
    return ReplacedTokens(config.rtd.generator_weight) if config.objective == "rtd" else MaskedLM()


def evaluate(
    objective: Objective, engine: Engine, batches: Iterable[Batch], interrupted: Callable[[], bool] = lambda: False
) -> dict[str, float] | None:
    """Held-out figures of the clean module; every rank calls it, with as many batches. What the generator samples has a
    seed of its own, the same for every evaluation and run on as many processes.

    Args: interrupted is asked before each batch, and answers alike on every rank; where it does, None is returned.
    """
    dist.seed_all(0, dist.rank())
    engine.module.eval()
    sums: Terms = {}
    stopped = False
    with torch.no_grad():
        for batch in batches:
            stopped = interrupted()
            if stopped:
                break
            add(sums, {name: value.double() for name, value in objective.count(engine, batch).items()})
    engine.module.train()
    return None if stopped else objective.scores({name: dist.all_reduce_(value).item() for name, value in sums.items()})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _drawn(folder: str, names: list[str], seed: int) -> list[str]:
    return [f"{folder} has no {', '.join(names)}: drawn from seed {seed}"] if names else []
