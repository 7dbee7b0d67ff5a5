"""The kernels against the plain formulas in float64: in Triton's interpreter, or on a GPU where there is one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asa.adversary import ASAConfig
from asa.fused import floors, fused_attention
from tests.fused.oracle import DEVICE, NAMES, TOLERANCES, draws, error, fused, plain, problem, spared

DTYPES = list(TOLERANCES)


def check(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    assert torch.equal(found["kept"].double(), wanted["kept"])
    errors = {name: error(found[name], wanted[name]) for name in ("context", *NAMES)}
    errors["mask_bias"] /= 2  # a row's sum of what the others have in parts, in which attention's part nearly cancels
    assert max(errors.values()) < TOLERANCES[dtype], errors


@pytest.mark.parametrize(("dtype", "left"), list(zip(DTYPES, (True, False, True), strict=True)))
def test_forward_and_all_gradients_are_those_of_the_formulas(dtype: torch.dtype, left: bool) -> None:
    """A row of padding alone, one with some, one without; a head that is no power of two; several tiles."""
    length = 70 if dtype == torch.float32 else 130
    small = problem((3, 2, length, 40 if left else 96), 80, dtype, (length, 17, 0), left)
    check(fused(small), plain(small), dtype)


def check_dropout(shape: tuple[int, int, int, int], dtype: torch.dtype, dropout: float) -> None:
    given = problem(shape, 48, dtype, (20,), dropout=dropout)
    torch.manual_seed(5)
    found = fused(given)
    torch.manual_seed(5)
    seed = int(torch.randint(2**62, (1,), device=DEVICE))
    check(found, plain(given, spared(seed, shape[:3], dropout)), dtype)


@settings(max_examples=3, derandomize=True)
@given(st.data())
def test_any_shape(data: st.DataObject) -> None:
    check_a_shape(data)


@pytest.mark.slow
@settings(max_examples=30, derandomize=True)
@given(st.data())
def test_many_shapes(data: st.DataObject) -> None:
    check_a_shape(data)


def check_a_shape(data: st.DataObject) -> None:
    rows, heads, length = (data.draw(st.integers(1, most)) for most in (2, 2, 100))
    head = data.draw(st.integers(4, 128))
    pads = data.draw(st.lists(st.integers(0, length), max_size=rows))
    config = ASAConfig(reversal=data.draw(st.floats(1e-4, 1)), temperature=data.draw(st.floats(0.5, 4)))
    left, dtype, seed = data.draw(st.booleans()), data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 99))
    width = data.draw(st.integers(4, 150))
    small = problem((rows, heads, length, head), width, dtype, tuple(pads), left, config=config, seed=seed)
    check(fused(small), plain(small), dtype)


@pytest.mark.parametrize(
    ("dtype", "length"), [(torch.float32, 45), (torch.bfloat16, 140), (torch.float16, 70)], ids=str
)
def test_dropout_is_the_same_in_both_passes(dtype: torch.dtype, length: int) -> None:
    """The weights it spares are known from the seed alone, so the formulas can spare the same. Several tiles."""
    check_dropout((2, 2, length, 32), dtype, 0.3)


def test_a_draw_that_is_the_threshold_itself_spares_its_weight_in_every_kernel() -> None:
    torch.manual_seed(5)
    drawn = draws(int(torch.randint(2**62, (1,), device=DEVICE)), (1, 1, 40))
    for key in (0, 1):  # the lower half of a word and the upper
        least = drawn[0, 0, 1, key:20:2]  # of the query that keeps nothing and the keys it sees: no weight is 0
        check_dropout((1, 1, 40, 32), torch.float32, float(least[abs(least.astype(int) - 20000).argmin()]) / 65536)


def test_dropout_spares_the_share_it_should_and_another_one_each_time() -> None:
    kept = torch.stack([spared(seed, (2, 3, 128), 0.1) for seed in (1, 2, 3 + 2**40, 3)]).float()
    assert (kept.mean((1, 2, 3, 4)) - 0.9).abs().max() < 0.004  # 98 304 draws: standard deviation 0.001
    flat = kept.flatten(1)
    assert (torch.corrcoef(flat) - torch.eye(4, device=flat.device)).abs().max() < 0.02
    for near in (kept[0], kept[0].transpose(-1, -2)):  # neighbouring keys, neighbouring queries
        pair = torch.stack([near[..., 1:].flatten(), near[..., :-1].flatten()])
        assert torch.corrcoef(pair)[0, 1].abs() < 0.02
    torch.manual_seed(0)
    small = problem((1, 1, 40, 32), 32, dropout=0.5)
    assert not torch.equal(fused(small)["context"], fused(small)["context"])


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_the_same_call_gives_the_same_bits(dropout: float) -> None:
    small = problem((2, 2, 70, 32), 32, torch.float16, (9,), dropout=dropout)
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        runs.append(fused(small))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_a_query_that_keeps_nothing_attends_unmasked_and_teaches_the_map_only_the_price() -> None:
    small = problem((1, 2, 40, 32), 32)
    found = fused(small)
    assert found["kept"][0, 1] == 0
    q, k, v = (x.detach() for x in small.operands[:3])
    unmasked = torch.softmax(q[:, :, 1:2] @ k.transpose(-1, -2) * small.scale, -1) @ v
    torch.testing.assert_close(found["context"][:, :, 1:2], unmasked)
    small.d_kept_BL[:, 1] = 0
    assert fused(small)["mask_q"][0, 1].abs().max() == 0 < found["mask_q"][0, 1].abs().max()


@pytest.mark.parametrize("scale", [2.0**10, 2.0**16])
def test_fp16_has_room_for_the_price_at_the_loss_scales_of_training(scale: float) -> None:
    """tau 0.1, 4096 rows: beside the divergence's gradient, about 1 / rows, and alone. Reversal 1: with 1e-4 the
    gradients themselves are too small for fp16."""
    small = problem((1, 2, 70, 32), 48, torch.float16, (9,), config=ASAConfig(reversal=1.0))
    small.d_context_BHLK *= scale / 4096
    small.d_kept_BL.fill_(0.1**2 * scale / 4096)
    check(fused(small), plain(small), torch.float16)
    small.d_context_BHLK.zero_()
    check(fused(small), plain(small), torch.float16)


def test_nothing_of_length_by_length_is_kept_for_the_backward_pass() -> None:
    small = problem((1, 1, 70, 32), 32, dropout=0.1)
    sizes: list[int] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        fused(small)
    assert sizes
    assert max(sizes) == 70 * 32  # an operand; the bits take 70 * 3


def test_operands_need_not_lie_in_order() -> None:
    small = problem((2, 2, 33, 32), 32, pads=(9, 4))
    wanted = fused(small)
    q, k, v, mask_q, mask_k, mask_bias = (x.detach() for x in small.operands)
    strange: list[Any] = [
        q.contiguous(), k.transpose(-1, -2).contiguous().transpose(-1, -2), v,
        mask_q.transpose(0, 1).contiguous().transpose(0, 1), mask_k, mask_bias.T.contiguous().T,
    ]  # fmt: skip
    small.operands = tuple(x.requires_grad_() for x in strange)
    small.seen_BL = small.seen_BL.T.contiguous().T
    found = fused(small)
    assert all(torch.equal(found[name], wanted[name]) for name in found)


def test_rows_that_lie_farther_apart_than_32_bits_count_are_copied() -> None:
    rows_whole = pytest.importorskip("asa.fused.attention")._rows_whole
    far = torch.empty_strided((2, 3, 4, 8), (96, 2**30, 8, 1), device="meta")
    near = torch.empty_strided((2, 3, 4, 8), (2**40, 32, 8, 1), device="meta")  # of rows 64 bits count
    assert rows_whole(far).is_contiguous()
    assert rows_whole(near) is near


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_bias_in_half_precision_is_its_copy_in_fp32_to_the_bit(dtype: torch.dtype) -> None:
    half = problem((2, 2, 40, 16), 32, dtype, (7,))
    bias_BL = half.operands[-1]
    wide = replace(half, operands=(*half.operands[:-1], bias_BL.detach().float().requires_grad_()))
    found, copied = fused(half), fused(wide)
    copied["mask_bias"] = copied["mask_bias"].to(dtype)
    assert all(torch.equal(found[name], copied[name]) for name in found)


def test_keys_that_learn_nothing_get_no_gradient_and_no_bias_is_a_bias_of_zero() -> None:
    """As asa.adversary calls it: the keys of the map are the hidden states, and few tokens have no bias."""
    small = problem((2, 2, 70, 32), 48, pads=(9,))
    small.operands[-1].data.zero_()
    wanted = plain(small)
    q, k, v, mask_q, mask_k, _ = small.operands
    mask_k.requires_grad_(False)
    context, kept = fused_attention(
        q, k, v, mask_q, mask_k, None, floors(small.seen_BL), scale=small.scale, dropout=0.0, config=small.config
    )
    grads = torch.autograd.grad((context, kept), (q, k, v, mask_q), (small.d_context_BHLK, small.d_kept_BL))
    found = {"context": context.detach(), **dict(zip(NAMES, grads, strict=False))}
    assert torch.equal(kept.double(), wanted["kept"])
    assert all(error(one, wanted[name]) < TOLERANCES[torch.float32] for name, one in found.items())
