"""What sets FreeLB, PGD, FreeAT, YOPO and FGM apart, and the dropout masks that their passes share."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from asa.batch import Batch
from asa.errors import RequestError
from asa.families import FAMILIES
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.creat import CreATConfig
from asa.methods.fgm import FGM, FGMConfig
from asa.methods.freeat import FreeAT, FreeATConfig
from asa.methods.freelb import FreeLB, FreeLBConfig
from asa.methods.pgd import PGD, PGDConfig
from asa.methods.smart import SMARTConfig
from asa.methods.smoothness import SmoothConfig
from asa.methods.vat import VATConfig
from asa.methods.yopo import YOPO, YOPOConfig
from asa.model import TaskModel
from asa.signal import Perturb
from tests.asa.conftest import batch_for, gradients, tiny_batch, tiny_bert, tiny_module
from tests.asa.encoders import tiny
from tests.asa.test_methods import WALK, Watched

# B rows, D width, L length

STILL: dict[str, Any] = {"step_size": 0.0, "start": 0.0}


def passes(method: Any, engine: Watched, batch: Batch, seed: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return method.backward(engine, batch, At(0, 0))


def test_freelb_trains_on_the_mean_over_its_perturbations() -> None:
    engine, batch = Watched(tiny_module()), tiny_batch()
    terms = passes(FreeLB(FreeLBConfig(**WALK, passes=3)), engine, batch)
    other = tiny_module()
    losses = torch.stack([task_loss(other(batch, Perturb(embed_BLD=delta)), batch) for delta in engine.deltas])
    losses.mean().backward()
    torch.testing.assert_close(terms["loss"], losses.mean())
    torch.testing.assert_close(torch.stack([terms["task"], terms["attacked"]]), losses[[0, 2]])
    for name, value in gradients(other).items():
        torch.testing.assert_close(gradients(engine.module)[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_an_ascent_is_a_step_along_the_examples_own_gradient_and_a_projection() -> None:
    engine, batch = Watched(tiny_module("classification")), tiny_batch("classification")
    passes(FreeLB(FreeLBConfig(radius=0.2, step_size=0.15, start=0.1, passes=2)), engine, batch)
    delta = engine.deltas[0].requires_grad_()
    loss = task_loss(tiny_module("classification")(batch, Perturb(embed_BLD=delta)), batch)
    (gradient,) = torch.autograd.grad(loss, delta)
    moved = delta.detach() + 0.15 * gradient / gradient.flatten(1).norm(dim=1)[:, None, None]
    shrunk = moved * (0.2 / moved.flatten(1).norm(dim=1)).clamp_max(1)[:, None, None]
    torch.testing.assert_close(engine.deltas[1], shrunk, rtol=1e-4, atol=1e-7)


def test_clean_first_sees_the_batch_as_it_is_and_then_starts() -> None:
    engine = Watched(tiny_module())
    passes(FreeLB(FreeLBConfig(**WALK, passes=3, clean_first=True)), engine, tiny_batch())
    assert (engine.backwards, len(engine.deltas)) == (3, 2)
    assert engine.deltas[0].count_nonzero() > 0


@pytest.mark.parametrize("name", ["freelb", "pgd", "yopo", "fgm", "creat", "smart", "alum", "vat"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_dropout_masks_are_shared_by_the_passes_of_any_model_or_not_at_all(name: str, family: str) -> None:
    """With no ascent all passes see the same words, so they differ by their dropout masks alone."""
    batch = tiny_batch()
    batch.inputs.pop("token_type_ids")
    spread = {}
    for mode in ("shared", "independent"):
        engine = _Noting(TaskModel(tiny(family, dropout=0.3).train(), "mlm"))
        passes(METHODS[name](_quiet(mode)), engine, batch)
        spread[mode] = max((one - engine.logits[0]).abs().max().item() for one in engine.logits)
        assert len(engine.logits) > 1
    assert spread["shared"] < 1e-5
    assert spread["independent"] > 1e-2


class _Noting(Watched):
    """Also keeps the logits of every pass."""

    def __init__(self, module: TaskModel) -> None:
        super().__init__(module)
        self.logits: list[Tensor] = []

    def forward(self, batch: Batch, perturb: Any = None, tap: Any = None) -> Any:
        return self._keep(super().forward(batch, perturb, tap))

    def probe(self, batch: Batch, perturb: Any = None, tap: Any = None) -> Any:
        return self._keep(super().probe(batch, perturb, tap))

    def _keep(self, out: Any) -> Any:
        self.logits.append(out.logits.detach())
        return out


def _quiet(mode: Any) -> MethodsConfig:
    """No method's perturbation is more than 1e-9."""
    tiny_noise: dict[str, Any] = {"radius": 1e-9, "noise": 1e-9, "step_size": 0.0, "dropout": mode}
    return MethodsConfig(
        freelb=FreeLBConfig(**STILL, passes=3, dropout=mode),
        pgd=PGDConfig(**STILL, dropout=mode),
        yopo=YOPOConfig(**STILL, dropout=mode),
        fgm=FGMConfig(radius=0.0, dropout=mode),
        creat=CreATConfig(**STILL, temperature=0.0, dropout=mode),
        smart=SMARTConfig(**tiny_noise, proximal=0.0),
        alum=SmoothConfig(**tiny_noise),
        vat=VATConfig(radius=0.0, distance=1e-9, dropout=mode),
    )


def test_pgd_finds_a_higher_loss_than_where_it_starts_and_more_ascents_a_higher_one() -> None:
    found = []
    for ascents in (1, 5):
        engine, batch = Watched(tiny_module()), tiny_batch()
        terms = passes(PGD(PGDConfig(radius=0.5, step_size=0.1, start=0.05, ascents=ascents)), engine, batch)
        start = task_loss(tiny_module()(batch, Perturb(embed_BLD=engine.deltas[0])), batch)
        found += [start.item(), terms["loss"].item()]
    assert found[0] == found[2] < found[1] < found[3]


def test_freeat_keeps_the_perturbation_of_each_micro_batch_over_the_replays_and_no_longer() -> None:
    engine, method = Watched(tiny_module()), FreeAT(FreeATConfig(**WALK, replays=3))
    for window in range(2):
        for replay in range(3):
            for slot in range(2):
                torch.manual_seed(100 * window + slot)
                method.backward(engine, tiny_batch(seed=slot), At(slot, replay))
    first = engine.deltas[:6]
    assert not torch.equal(first[0], first[1])
    for replay in (1, 2):
        before = first[2 * (replay - 1)]
        assert 0 < (first[2 * replay] - before).flatten(1).norm(dim=1).max() <= 0.15 * (1 + 1e-5)
    assert not torch.equal(engine.deltas[6], first[4])
    assert method.state_dict() == {}


def test_freeat_goes_on_from_no_replay_that_was_not_made() -> None:
    with pytest.raises(RequestError, match="no replay 0 of micro-batch 2"):
        FreeAT(FreeATConfig(**WALK)).backward(Watched(tiny_module()), tiny_batch(), At(2, 1))


@pytest.mark.parametrize("left", [False, True])
def test_yopo_with_one_inner_ascent_is_freelb(left: bool) -> None:
    """Through the first block's Jacobian its output's gradient gives the words' gradient exactly; where the padding
    stands left, the head reads the state of a padded position."""
    found, kind = [], "classification" if left else "mlm"
    for method in (FreeLB(FreeLBConfig(**WALK, passes=3)), YOPO(YOPOConfig(**WALK, passes=3, inner=1))):
        engine, batch = Watched(tiny_module(kind, dropout=0.2).train()), tiny_batch(kind)
        if left:
            batch.inputs.update({name: values.flip(1) for name, values in batch.inputs.items()})
        terms = passes(method, engine, batch)
        found.append({**gradients(engine.module), **terms})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", ["bert", "electra", "modernbert", "deberta", "distilbert", "mpnet"])
def test_yopos_inner_ascents_run_the_first_block_alone_on_every_family(family: str) -> None:
    batch = tiny_batch()
    batch.inputs.pop("token_type_ids")
    runs, found = Counter(), []
    for inner in (1, 3):
        engine = Watched(TaskModel(tiny(family).train(), "mlm"))
        blocks = engine.module.model.base_model.get_submodule(FAMILIES[family].layers)
        for place, block in enumerate(blocks.children()):
            block.register_forward_hook(lambda *_, at=(inner, place): runs.update([at]))
        found.append(passes(YOPO(YOPOConfig(**WALK, passes=3, inner=inner)), engine, batch)["attacked"])
        assert engine.backwards == 3
        assert (runs[inner, 0], runs[inner, 1]) == (3 + 2 * inner, 3)
    assert found[0] != found[1]


def test_yopo_needs_two_blocks() -> None:
    model: Any = tiny("bert")
    del model.bert.encoder.layer[1:]  # of which its config knows nothing
    with pytest.raises(RequestError, match="two blocks"):
        passes(YOPO(YOPOConfig()), Watched(TaskModel(model, "mlm")), tiny_batch())


def test_yopo_is_refused_under_zero_3() -> None:
    engine = Watched(tiny_module())
    engine.partitioned = True
    with pytest.raises(RequestError, match="set --zero 2"):
        passes(YOPO(YOPOConfig()), engine, tiny_batch())


def test_fgm_trains_on_both_losses() -> None:
    engine, batch = Watched(tiny_module()), tiny_batch()
    terms = passes(FGM(FGMConfig(radius=0.3, weight=0.5)), engine, batch)
    other = tiny_module()
    loss = task_loss(other(batch), batch) + task_loss(other(batch, Perturb(embed_BLD=engine.deltas[-1])), batch) / 2
    loss.backward()
    torch.testing.assert_close(terms["loss"], loss.detach())
    for name, value in gradients(other).items():
        torch.testing.assert_close(gradients(engine.module)[name], value, rtol=1e-4, atol=1e-6, msg=name)
    assert terms["attacked"] > terms["task"] / 2


def test_clean_first_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"freelb\.passes"):
        FreeLBConfig(passes=1, clean_first=True)


@pytest.mark.parametrize("options", [{"passes": 1}, {"passes": 2, "clean_first": True}])
def test_passes_of_which_none_sees_a_perturbation_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"start = 0 is plain training.*raise --freelb\.passes or --freelb\.start"):
        FreeLB(FreeLBConfig(**options))
    FreeLB(FreeLBConfig(**options, start=0.05))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_a_half_precision_model_the_sum_is_exact_and_what_the_layer_norm_passes_on_follows_from_1e_2(
    dtype: torch.dtype,
) -> None:
    """The sum of words and perturbation stays fp32 up to the LayerNorm, which gives back the model's type."""
    drawn = torch.randn(3, 10, 16, generator=torch.Generator().manual_seed(2)).sign()
    for size, least in ((1e-5, None), (1e-2, 0.95)):
        sums, passed = _embedding_changes(dtype, drawn * size)
        torch.testing.assert_close(sums, drawn * size, rtol=0.1, atol=0)
        _, exact = _embedding_changes(torch.float32, drawn * size)
        likeness = torch.cosine_similarity(passed.flatten(), exact.flatten(), dim=0)
        assert likeness > least if least else likeness < 0.9


@pytest.mark.parametrize("name", ["deberta", "deberta-v2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_words_that_are_narrower_than_the_model_are_perturbed_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """DeBERTa's product between words and LayerNorm takes the sum, which is fp32."""
    found = []
    for kind in (torch.float32, dtype):
        module = TaskModel(tiny(name, embedding_size=8), "mlm")
        module.to(kind)
        drawn = torch.randn(3, 10, 8, generator=torch.Generator().manual_seed(2))
        found.append(task_loss(module(batch_for(name), Perturb(embed_BLD=drawn)), batch_for(name)))
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=0)


def _embedding_changes(dtype: torch.dtype, delta: Tensor) -> tuple[Tensor, Tensor]:
    """What a perturbation changes of a model's embeddings, before and after their LayerNorm, in fp32."""
    module, batch = TaskModel(tiny_bert(), "mlm").to(dtype), tiny_batch()
    seen: list[tuple[Tensor, Tensor]] = []
    norm = module.model.get_submodule("bert.embeddings.LayerNorm")
    norm.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].detach(), output.detach())))
    for perturb in (None, Perturb(embed_BLD=torch.zeros_like(delta)), Perturb(embed_BLD=delta)):
        module(batch, perturb)
    plain, still, moved = seen
    assert (plain[0].dtype, still[0].dtype) == (dtype, torch.float32)
    assert plain[1].dtype == still[1].dtype == dtype
    torch.testing.assert_close(still[1], plain[1], rtol=0.05, atol=0.05)
    return moved[0] - still[0], moved[1].float() - still[1].float()
