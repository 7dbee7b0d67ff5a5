"""The adversary: exact masks in every precision, a reversed gradient at its own parameters and nowhere else."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asa.adversary import Adversaries, Adversary, ASAConfig, logistic_noise, merges
from asa.config import to_dict
from asa.losses import counted_units, kept_keys, penalty
from asa.methods import METHODS, At, MethodsConfig
from asa.signal import Perturb, Site
from tests.asa.conftest import ROWS, tiny_batch, tiny_engine, tiny_module

# B rows, L length, D width

LENGTH, WIDTH, HEADS = 6, 8, 2
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def made(init_std: float = 1.0, **config: Any) -> Adversary:
    torch.manual_seed(0)
    config = {"reversal": 1.0, **config}
    return Adversary(WIDTH, HEADS, ASAConfig(**config), init_std)


def states(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def padding() -> Tensor:
    return torch.arange(LENGTH) >= torch.tensor([[6], [4], [3]])


def seen() -> Tensor:
    """Every query sees the keys that are no padding."""
    return ~padding()[:, None, :]


@given(st.integers(0, 2**31), st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.booleans(), st.floats(1e-3, 30))
def test_keep_is_exactly_zero_or_one_in_every_precision(
    seed: int, inputs: torch.dtype, weights: torch.dtype, autocast: bool, scale: float
) -> None:
    adversary = made().to(weights)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        keep_BLL = adversary(states(seed, inputs) * scale, seen())
    assert keep_BLL.dtype == torch.float32
    assert ((keep_BLL == 0) | (keep_BLL == 1)).all()
    torch.testing.assert_close(keep_BLL, (adversary.scores(states(seed, inputs) * scale, seen()) > 0).float())


@given(st.integers(0, 2**31), st.sampled_from(DTYPES))
def test_padding_keys_are_never_kept(seed: int, dtype: torch.dtype) -> None:
    keep_BLL = made()(states(seed, dtype), seen())
    assert keep_BLL.transpose(1, 2)[padding()].max() == 0
    assert keep_BLL.max() == 1


def test_scores_are_equation_5_to_7_at_real_keys() -> None:
    adversary, h_BLD = made(), states().double()
    weights = [p.detach().double() for p in (adversary.query.weight, adversary.query.bias)]
    weights += [p.detach().double() for p in (adversary.key.weight, adversary.key.bias)]
    q_BLD, k_BLD = h_BLD @ weights[0].T + weights[1], h_BLD @ weights[2].T + weights[3]
    expected = torch.einsum("bid,bjd->bij", q_BLD, k_BLD) / WIDTH**0.5
    real_BLL = seen().expand(ROWS, LENGTH, LENGTH)
    found = adversary.scores(states(), seen()).double()
    torch.testing.assert_close(found[real_BLL], expected[real_BLL], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reversal", [1.0, 1e-4])
def test_the_gradient_is_the_sigmoids_reversed_and_scaled(reversal: float) -> None:
    adversary = made(reversal=reversal)
    upstream_BLL = torch.randn(ROWS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(5))
    soft_BLL = adversary.scores(states(), seen()).sigmoid()
    plain = torch.autograd.grad((soft_BLL * upstream_BLL).sum(), list(adversary.parameters()))
    found = torch.autograd.grad((adversary(states(), seen()) * upstream_BLL).sum(), list(adversary.parameters()))
    assert plain[0].abs().max() > 0
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, -reversal * other, rtol=1e-4, atol=reversal * 1e-6)


@given(st.integers(0, 2**31), st.sampled_from(["float64", "float32", "autocast"]))
def test_one_map_made_of_two_scores_and_learns_as_the_two(seed: int, kind: str) -> None:
    """The rule, how much work each is, is turned either way."""
    dtype = torch.float32 if kind == "autocast" else getattr(torch, kind)
    adversary, h_BLD = made().to(dtype), states(seed, dtype)
    with torch.no_grad():
        adversary.query.bias.normal_()
        adversary.key.bias.normal_()
    upstream_BLL = torch.randn(ROWS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    found = []
    for merged in (True, False):
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            patch.setattr("asa.adversary.merges", lambda shape, merged=merged: merged)
            x_BLL = adversary.scores(h_BLD, seen())
            q_BLD, k_BLD, bias_BL = adversary.products(h_BLD, dtype)
            assert (bias_BL is not None) == merged
        y_BLL = q_BLD @ k_BLD.transpose(1, 2) + (0 if bias_BL is None else bias_BL.unsqueeze(-1))
        grads = torch.autograd.grad((x_BLL * upstream_BLL).sum(), list(adversary.parameters()))
        found.append((x_BLL.detach(), y_BLL.detach(), grads))
    (x, y, grads), (other_x, other_y, other_grads) = found
    near = 1e-9 if kind == "float64" else 1e-4
    torch.testing.assert_close(x, other_x, rtol=near, atol=near)
    torch.testing.assert_close(grads, other_grads, rtol=near, atol=near)
    # The bias has the weights' type, and under autocast the factors are bfloat16's.
    rtol, atol = (0.1, 0.5) if kind == "autocast" else (1e-4, 1e-4)
    torch.testing.assert_close(y, other_y, rtol=rtol, atol=atol)


def test_two_maps_are_made_one_where_that_is_less_work() -> None:
    base, large = 768, 1024
    for width, length, most in ((base, 128, 8), (base, 256, 3), (large, 128, 11), (large, 512, 2)):
        assert [merges(torch.Size((rows, length, width))) for rows in (1, most, most + 1)] == [False, False, True]


def test_hidden_states_get_no_gradient_from_the_adversary() -> None:
    adversary, h_BLD = made(), states().requires_grad_()
    adversary(h_BLD, seen()).sum().backward()
    assert h_BLD.grad is None
    assert adversary.query.weight.grad is not None


def test_descending_on_the_penalty_raises_the_scores() -> None:
    """The price is on attended units and arrives reversed: the adversary is paid for keeping (the released sign)."""
    adversary, batch = made(), tiny_batch()
    h_BLD, pad_BL = states(), padding()
    queries_BL1 = ~pad_BL[:, :, None]

    def soft_kept() -> Tensor:
        return (adversary.scores(h_BLD, seen()).sigmoid() * queries_BL1).sum()

    before = soft_kept()
    penalty(counted_units(kept_keys(adversary(h_BLD, seen())), pad_BL, "valid"), batch, tau=1.0).backward()
    with torch.no_grad():
        for p in adversary.parameters():
            assert p.grad is not None
            p -= 1e-3 * p.grad
    assert soft_kept() > before + 1e-4


def test_the_penalty_gives_gradient_to_adversaries_alone() -> None:
    module, batch = tiny_module(asa=ASAConfig()), tiny_batch()
    adversary = module.adversary
    assert adversary is not None
    keeps: list[Tensor] = []

    def attend(site: Site) -> Tensor:
        keeps.append(adversary[site.layer](site.h_BLD, site.seen_BLL))
        return keeps[-1]

    module(batch, Perturb(attend=attend))
    penalty(
        torch.stack([counted_units(kept_keys(k), batch.pad_BL, "valid") for k in keeps]).sum(), batch, 0.3
    ).backward()
    reached = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert reached == {f"adversary.{name}" for name, _ in adversary.named_parameters()}


@given(st.integers(0, 2**31), st.sampled_from(["shared", "each"]), st.floats(0.2, 3), st.floats(1e-4, 1), st.booleans())
def test_the_gradient_is_that_of_finite_differences_of_a_soft_map(
    seed: int, heads: Any, temperature: float, reversal: float, noisy: bool
) -> None:
    """Any gradient that reaches the map goes on as through sigmoid((x + noise) / temperature), reversed and scaled."""
    adversary = made(heads=heads, temperature=temperature, reversal=reversal, mask="gumbel" if noisy else "hard")
    adversary = adversary.double()
    h_BLD, rng = states(seed, torch.float64), torch.Generator().manual_seed(seed)
    noise = adversary.noise(padding())
    keep = adversary(h_BLD, seen(), noise)
    upstream = torch.randn(keep.shape, generator=rng, dtype=torch.float64)

    def soft() -> Tensor:
        x = adversary.scores(h_BLD, seen()) + (0 if noise is None else noise)
        return ((x / temperature).sigmoid() * upstream).sum()

    (keep * upstream).sum().backward()
    for p in (adversary.query.weight, adversary.key.weight, adversary.query.bias):
        direction = torch.randn(p.shape, generator=rng, dtype=torch.float64)
        assert p.grad is not None
        found = (p.grad * direction).sum().item()
        difference = []
        with torch.no_grad():
            for step in (1e-5, -1e-5):
                p += step * direction
                difference.append(soft().item())
                p -= step * direction
        expected = -reversal * (difference[0] - difference[1]) / 2e-5
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-7 * reversal)


@given(st.integers(0, 2**31), st.sampled_from(["shared", "each"]))
def test_descending_on_any_price_of_kept_units_raises_their_scores(seed: int, heads: Any) -> None:
    """The reversal's sign: what the loss charges for, the adversary does more of."""
    adversary, h_BLD = made(heads=heads), states(seed)
    adversary(h_BLD, seen()).sum().backward()
    before = adversary.scores(h_BLD, seen()).sigmoid().sum()
    with torch.no_grad():
        for p in adversary.parameters():
            assert p.grad is not None
            p -= 1e-4 * p.grad
    assert adversary.scores(h_BLD, seen()).sigmoid().sum() > before


def test_gumbel_noise_is_the_difference_of_two_gumbel_draws() -> None:
    torch.manual_seed(0)
    noise = logistic_noise((200_000,), torch.device("cpu")).double()
    assert noise.isfinite().all()
    assert abs(noise.mean().item()) < 0.02
    assert noise.var().item() == pytest.approx(torch.pi**2 / 3, rel=0.02)
    for x in (-2.0, 0.0, 1.0):  # a unit of score x is kept with log odds x
        share = (noise + x > 0).double().mean().item()
        assert share == pytest.approx(torch.tensor(x).sigmoid().item(), abs=0.005)


def test_a_gumbel_map_is_drawn_anew_and_a_hard_one_is_not() -> None:
    gumbel, hard = made(mask="gumbel"), made(mask="hard")
    assert hard.noise(padding()) is None
    one, two = (gumbel(states(), seen(), gumbel.noise(padding())) for _ in range(2))
    assert ((one == 0) | (one == 1)).all()
    assert not torch.equal(one, two)
    assert one.transpose(1, 2)[padding()].max() == 0


def test_one_map_per_head_scores_over_the_heads_share_of_the_width() -> None:
    adversary = made(heads="each")
    x_BHLL = adversary.scores(states(), seen())
    assert x_BHLL.shape == (ROWS, HEADS, LENGTH, LENGTH)
    q_BLD, k_BLD = adversary.query(states()), adversary.key(states())
    share = WIDTH // HEADS
    for head in range(HEADS):
        mine = slice(head * share, (head + 1) * share)
        expected = q_BLD[..., mine] @ k_BLD[..., mine].transpose(1, 2) / share**0.5
        real = seen().expand_as(expected)
        torch.testing.assert_close(x_BHLL[:, head][real], expected[real])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_with_every_unit_kept_the_divergence_is_zero_if_dropout_is_off_or_shared(dropout: float) -> None:
    for shared in ("shared", "independent"):
        config = ASAConfig(dropout=shared)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        module = tiny_module(asa=config, dropout=dropout).train()
        assert module.adversary is not None
        for p in module.adversary.parameters():
            p.data.zero_()
        for adversary in module.adversary:
            adversary.query.bias.data.fill_(1.0)  # type: ignore[union-attr, operator]
            adversary.key.bias.data.fill_(1.0)  # type: ignore[union-attr, operator]
        terms = METHODS["asa"](MethodsConfig(asa=config)).backward(tiny_engine(module), tiny_batch(), At(0, 0))
        assert terms["masked_share"].max() == 0
        same = dropout == 0 or shared == "shared"
        assert (terms["asa_token"] < 1e-9) == same
        assert (terms["asa_sentence"] < 1e-9) == same


def test_there_is_one_adversary_per_layer_with_its_own_weights() -> None:
    adversaries = Adversaries(3, WIDTH, HEADS, ASAConfig())
    assert len(adversaries) == 3
    assert len({p.data_ptr() for p in adversaries.parameters()}) == 3 * 4


def test_released_differs_from_the_defaults_in_every_mended_defect() -> None:
    default, released = ASAConfig(), ASAConfig.released(tau=0.5)
    assert released.tau == 0.5
    mended = {"reversal", "empty_row", "penalty_rows", "masked_score", "regression", "token_mean"}
    differ = {name for name in to_dict(default) if getattr(default, name) != getattr(released, name)}
    assert differ == mended | {"tau"}


@pytest.mark.parametrize("change", [{"tau": 0.0}, {"reversal": -1.0}, {"reversal": 2.0}, {"masked_score": "none"}])
def test_values_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        ASAConfig(**change)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
