"""Low precision: adversary, penalty and divergence in fp32, nothing infinite at the extremes, no clip starvation."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asa.adversary import ASAConfig
from asa.attention import attach, perturbed
from asa.biased import bias, fill_empty_rows
from asa.families import FAMILIES
from asa.losses import divergence
from asa.methods import METHODS, At, MethodsConfig
from asa.model import Output, TaskModel
from asa.signal import Perturb, Site
from asa.typed import deterministic
from tests.asa.conftest import KINDS, batch_for, gradients, settled, tiny_batch, tiny_engine
from tests.asa.encoders import HEADS, LAYERS, LENGTH, PAIRS, WIDTH, tiny

# B rows, L length, D width

LOSS_SCALE = 65536.0
LOW = (torch.float16, torch.bfloat16)
each_pair = pytest.mark.parametrize(("name", "attention"), PAIRS)
each_low = pytest.mark.parametrize("dtype", LOW)


@each_low
@each_pair
def test_an_asa_step_under_autocast_is_finite_and_near_fp32(name: str, attention: str, dtype: torch.dtype) -> None:
    found = []
    for enabled in (False, True):
        module = TaskModel(tiny(name, attention=attention), "mlm", ASAConfig())
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            terms = settled("asa", tiny_engine(module), batch_for(name))
        assert {value.dtype for value in terms.values()} == {torch.float32}
        assert all(value.isfinite().all() for value in gradients(module).values())
        found.append(terms)
    assert found[1]["task"].item() == pytest.approx(found[0]["task"].item(), rel=0.05)


@each_low
@each_pair
def test_scores_under_autocast_are_computed_in_fp32(name: str, attention: str, dtype: torch.dtype) -> None:
    """From the same hidden states, autocast changes no bit of the keep map."""
    module = TaskModel(tiny(name, attention=attention), "mlm", ASAConfig())
    adversary = module.adversary
    assert adversary is not None
    pairs: list[tuple[Tensor, Tensor]] = []

    def attend(site: Site) -> Tensor:
        inside = adversary[site.layer].scores(site.h_BLD, site.seen_BLL)  # type: ignore[operator]
        with torch.autocast("cpu", enabled=False):
            outside = adversary[site.layer].scores(site.h_BLD.float(), site.seen_BLL)  # type: ignore[operator]
        pairs.append((inside, outside))
        return adversary[site.layer](site.h_BLD, site.seen_BLL)

    with torch.autocast("cpu", dtype=dtype):
        module(batch_for(name), Perturb(attend=attend))
    assert len(pairs) == LAYERS
    for inside, outside in pairs:
        assert inside.dtype == torch.float32
        assert torch.equal(inside, outside)


def extreme_layer(name: str, attention: str, dtype: torch.dtype, length: int, keep: str) -> list[Tensor]:
    """Output and scaled gradients of one attention layer whose scores reach 1e4, in pure low precision."""
    model = tiny(name, attention=attention, max_position_embeddings=length + 2, hidden_size=64, num_attention_heads=1)
    module = next(iter(model.base_model.get_submodule(FAMILIES[name].layers).children()))
    module = module.get_submodule(FAMILIES[name].attention)
    ids_BL = torch.randint(5, 40, (2, length), generator=torch.Generator().manual_seed(0))
    mask_BL = torch.ones_like(ids_BL)
    mask_BL[1, length // 2 :] = 0
    attach(model)
    sharpen(model, module, ids_BL, mask_BL)
    model.to(dtype)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    maps = {"all": torch.ones, "none": torch.zeros, "random": random_map}
    keep_BLL = maps[keep](2, length, length).requires_grad_()
    given: list[Tensor] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        output[0].retain_grad()
        given.append(output[0])

    handle = module.register_forward_hook(note, with_kwargs=True)
    with perturbed(model, Perturb(attend=lambda site: keep_BLL)):
        hidden = model.base_model(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state  # type: ignore[operator]
    handle.remove()
    real_BL1 = mask_BL[:, :, None].to(dtype)
    # What a mean over the units gives each unit, times the loss scale.
    (given[0] * real_BL1).backward(torch.full_like(hidden, LOSS_SCALE / hidden.numel()))
    weights = [p.grad for p in module.parameters() if p.grad is not None]
    assert keep_BLL.grad is not None
    return [given[0], keep_BLL.grad, *weights]


def random_map(rows: int, length: int, _: int) -> Tensor:
    keep_BLL = torch.rand(rows, length, length, generator=torch.Generator().manual_seed(1)).round()
    keep_BLL[:, 3] = 0
    return keep_BLL


def sharpen(model: Any, module: nn.Module, ids_BL: Tensor, mask_BL: Tensor) -> None:
    """Scale the query projection such that the largest unmasked score is near 1e4."""
    scores: list[Tensor] = []

    def attend(site: Site) -> Tensor:
        weights = site.weights()
        if not scores:
            scores.append(weights.clamp_min(1e-30).log())
        return torch.ones(2, *ids_BL.shape[1:], ids_BL.shape[1])

    with perturbed(model, Perturb(attend=attend)), torch.no_grad():
        model.base_model(input_ids=ids_BL, attention_mask=mask_BL)
    real = scores[0][0]
    factor = 1e4 / (real.amax() - real.amin()).item()
    for n, p in module.named_parameters():
        if n.split(".")[0] in ("query", "q", "q_lin", "query_proj", "Wqkv", "in_proj"):
            p.data *= factor**0.5 if n.split(".")[0] in ("Wqkv", "in_proj") else factor


@each_low
@each_pair
@pytest.mark.parametrize("keep", ["all", "none", "random"])
def test_scores_of_ten_thousand_and_rows_all_masked_stay_finite(
    name: str, attention: str, dtype: torch.dtype, keep: str
) -> None:
    for value in extreme_layer(name, attention, dtype, 64, keep):
        assert value.isfinite().all()


@each_low
def test_length_512_stays_finite(dtype: torch.dtype) -> None:
    for name, attention in (("bert", "sdpa"), ("modernbert", "sdpa"), ("deberta-v2", "eager")):
        for value in extreme_layer(name, attention, dtype, 512, "random"):
            assert value.isfinite().all()


@each_low
@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.booleans())
def test_the_bias_leaves_padding_below_every_masked_score(
    dtype: torch.dtype, score: float, other: float, keep: bool
) -> None:
    """Even where a real key has the lowest score and is masked, and a padding key the highest."""
    keep_BLL, seen_BLL = torch.full((1, 1, 2), float(keep)), torch.tensor([[[True, False]]])
    scores = torch.tensor([score, other], dtype=dtype) + bias(keep_BLL, seen_BLL, dtype)[0, 0]
    assert scores.isfinite().all()
    assert scores.float().softmax(-1)[1] == 0


@given(st.integers(0, 2**31))
def test_a_filled_map_has_no_empty_row_among_what_is_seen(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    keep_BLL = torch.rand(2, HEADS, 6, 6, generator=rng).round()
    seen_BLL = torch.rand(2, 1, 6, 6, generator=rng) < 0.5
    filled = fill_empty_rows(keep_BLL, seen_BLL)
    kept = (filled * seen_BLL).amax(-1) > 0
    assert (kept | ~seen_BLL.any(-1)).all()
    untouched = (keep_BLL * seen_BLL).amax(-1) > 0
    assert torch.equal(filled[untouched], keep_BLL[untouched])


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from(KINDS), st.sampled_from(LOW), st.sampled_from(["symmetric", "one_sided"]))
def test_divergences_of_extreme_logits_are_finite_with_finite_gradients(
    seed: int, kind: Any, dtype: torch.dtype, form: Any
) -> None:
    batch, rng = tiny_batch(kind), torch.Generator().manual_seed(seed)
    shapes = {"mlm": (len(batch.labels), 9), "regression": (3, 1), "choice": (3, 2), "token": (3, LENGTH, 3)}
    shape = shapes.get(kind, (3, 3))

    def output() -> Output:
        logits = (torch.rand(shape, generator=rng) * 2e4 - 1e4).to(dtype).requires_grad_()
        cls_BD = (torch.rand(3, WIDTH, generator=rng) * 2e4 - 1e4).to(dtype).requires_grad_()
        return Output(logits, cls_BD)

    clean, other = output(), output()
    terms = divergence(clean, other, batch, ASAConfig(divergence=form))
    loss = torch.stack(list(terms.values())).sum()
    assert loss.isfinite()
    for gradient in torch.autograd.grad(loss, [clean.logits, other.logits]):
        assert gradient.isfinite().all()


def norms(reversal: float) -> tuple[float, float, float]:
    """Gradient norms of the model with and without the adversary's objective, and of the adversary."""
    config = ASAConfig(reversal=reversal)
    module = TaskModel(tiny("bert", hidden_size=64, initializer_range=0.1), "mlm", config)
    METHODS["asa"](MethodsConfig(asa=config)).backward(tiny_engine(module), tiny_batch(), At(0, 0))
    found = gradients(module)
    parts = [[g for n, g in found.items() if n.startswith(prefix)] for prefix in ("model.", "adversary.")]
    model, adversary = (math.sqrt(sum(float(g.square().sum()) for g in part)) for part in parts)
    total = float(nn.utils.clip_grad_norm_(list(module.parameters()), 1.0))
    return model, adversary, total


def test_the_adversary_does_not_eat_the_clip_norm_of_the_model() -> None:
    """Clipping at 1 divides the model's gradient by the norm of both: with the released scale little is left."""
    model, adversary, total = norms(ASAConfig().reversal)
    assert total == pytest.approx(math.hypot(model, adversary), rel=1e-5)
    assert model > 0.99 * total
    starved_model, starved_adversary, starved_total = norms(1.0)
    assert starved_model == pytest.approx(model, rel=1e-5)  # the model's own gradient is the same
    assert starved_adversary == pytest.approx(adversary / ASAConfig().reversal, rel=1e-3)
    assert starved_model < 0.1 * starved_total


def test_deterministic_kernels_write_their_outputs_once() -> None:
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    try:
        deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert not memory.fill_uninitialized_memory  # with it torch.empty is a tensor of NaN
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = before[1]
