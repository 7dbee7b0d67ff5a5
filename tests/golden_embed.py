"""Golden files of the methods that perturb word embeddings: FreeLB's and SMART's released programs."""

from unittest.mock import patch

import torch
from torch import Tensor

from asa.batch import Batch
from asa.engine import PlainEngine
from asa.methods import At, Method
from asa.methods.freelb import FreeLB, FreeLBConfig
from asa.methods.smart_released import GUARD, SMARTReleased, SMARTReleasedConfig
from asa.model import Output
from asa.optim import OptimConfig
from asa.signal import Perturb, Tap
from tests.golden_files import Golden, batch_of, build, error, gradient_errors, load_weights, relative


class Watched(PlainEngine):
    """Remembers the perturbation and the logits of every pass."""

    def __init__(self, golden: Golden, meta: dict[str, str], regression: bool) -> None:
        module = build(meta, "regression" if regression else "classification")
        load_weights(module, golden)
        super().__init__(module, OptimConfig(), steps=1, device=torch.device("cpu"))
        self.passes: list[tuple[Tensor | None, Tensor]] = []

    def probe(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        return self._note(perturb, super().probe(batch, perturb, tap))

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        return self._note(perturb, super().forward(batch, perturb, tap))

    def _note(self, perturb: Perturb | None, out: Output) -> Output:
        delta = perturb.embed_BLD if perturb else None
        self.passes.append((None if delta is None else delta.detach().clone(), out.logits.detach()))
        return out

    def deltas(self) -> list[Tensor]:
        return [delta for delta, _ in self.passes if delta is not None]


def check_freelb(golden: Golden, meta: dict[str, str]) -> dict[str, float]:
    """Perturbation of each pass, accumulated loss and gradients of one freelb_* file; errors by name."""
    options = FreeLBConfig(
        ball="linf" if meta["norm"] == "linf" else "l2",
        radius=float(meta["max_norm"]) or None,  # the release's 0 is no bound
        step_size=float(meta["step_size"]),
        start=float(meta["init_mag"]),
        passes=int(meta["steps"]),
    )
    engine = Watched(golden, meta, regression=False)
    with patch("asa.perturb.start", lambda *_: golden["delta.0"].clone()):
        terms = _run(engine, FreeLB(options), golden)
    errors = {f"delta.{n}": error(delta, golden[f"delta.{n}"]) for n, delta in enumerate(engine.deltas())}
    return errors | {"loss": error(terms["loss"], golden["loss"])} | gradient_errors(engine.module, golden)


def check_smart(golden: Golden, meta: dict[str, str]) -> dict[str, float]:
    """Ascents, losses, logits and gradients of one smart_* file; errors by name.

    An ascent starts from a divergence of two predictions that differ in the last digits of fp32, so of its gradient two
    machines share two digits. Each is therefore compared by itself (`ascent.k`, relative to what the gradient changes),
    and the loss and its gradients are taken at the file's own last perturbation.
    """
    errors: dict[str, float] = {}
    ascents, real = int(meta["steps"]), golden["attention_mask"].bool()
    for number in range(ascents):
        before = golden["noise"] if number == 0 else golden[f"delta.{number}"]
        found = _smart(golden, meta, before, ascents=1)[0].deltas()[1][real]
        theirs = golden[f"delta.{number + 1}"][real]
        unmoved = (before / (before.abs().amax(-1, keepdim=True) + GUARD))[real]
        errors[f"ascent.{number}"] = relative((found - theirs).norm().item(), (unmoved - theirs).norm().item())
    engine, terms = _smart(golden, meta, golden[f"delta.{ascents}"], ascents=0)
    words = engine.module.model.get_input_embeddings()(golden["input_ids"].long())[real]
    errors["delta.0"] = error(words + golden["noise"][real], words + golden["delta.0"][real])
    errors["logits"] = error(engine.passes[0][1], golden["logits"])
    for ours, theirs in (("task", "task_loss"), ("smooth", "smooth_loss"), ("loss", "loss")):
        weight = float(meta["weight"]) if ours == "smooth" else 1.0
        errors[theirs] = error(terms[ours] / weight, golden[theirs])
    return errors | gradient_errors(engine.module, golden)


def _smart(golden: Golden, meta: dict[str, str], start: Tensor, ascents: int) -> tuple[Watched, dict[str, Tensor]]:
    options = SMARTReleasedConfig(
        weight=float(meta["weight"]),
        noise=float(meta["noise_var"]),
        step_size=float(meta["step_size"]),
        ascents=ascents,
    )
    engine = Watched(golden, meta, regression=meta["regression"] == "True")
    with patch("asa.perturb.gaussian", lambda *_: start.clone()):
        return engine, _run(engine, SMARTReleased(options), golden)


def _run(engine: Watched, method: Method, golden: Golden) -> dict[str, Tensor]:
    return method.backward(engine, batch_of(golden, engine.module.kind), At(0, 0))
