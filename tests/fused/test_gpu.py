"""The kernels on a real GPU, at real sizes."""

import pytest
import torch

from asa import fused as kernels
from asa.adversary import ASAConfig
from asa.engine import Passes
from asa.optim import OptimConfig
from asa.signal import Perturb
from tests.asa.conftest import LENGTH, ROWS, tiny_batch, tiny_module
from tests.asa.test_compared import by_torch, case, gradients
from tests.fused.oracle import TOLERANCES, error, fused, plain, problem
from tests.fused.test_attention import check, check_dropout
from tests.fused.test_norms import formulas, operands, ours

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [128, 256, 509, 2048])
def test_sizes_of_bert_base(length: int, dtype: torch.dtype) -> None:
    large = problem((2, 12, length, 64), 768, dtype, (length // 3,), dropout=0)
    check(fused(large), plain(large), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dropout_over_many_tiles_and_heads(dtype: torch.dtype) -> None:
    check_dropout((2, 12, 509, 64), dtype, 0.1)


@pytest.mark.parametrize("head", [32, 80, 96, 128])
def test_heads(head: int) -> None:
    large = problem((2, 4, 200, head), 4 * head, torch.bfloat16, (0, 50), left=True)
    check(fused(large), plain(large), torch.bfloat16)


def test_a_step_is_reproducible_and_lays_out_no_array_of_heads_by_length_by_length() -> None:
    large = problem((8, 12, 1024, 64), 768, torch.float16, (100,), dropout=0.1)
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        runs.append(fused(large))
        peak = torch.cuda.max_memory_allocated() - before
        scores = 8 * 12 * 1024 * 1024 * 2
        assert peak < scores
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_a_norm_of_more_numbers_than_32_bits_count() -> None:
    x_NW = torch.zeros(2**31 // 768 + 8, 768, device="cuda", dtype=torch.float16)
    x_NW[-1, 5] = 100
    one_W, zero_W = (make(768, device="cuda", dtype=torch.float16) for make in (torch.ones, torch.zeros))
    x_NW.requires_grad_()
    found = kernels.add_norm(x_NW, zero_W, torch.zeros_like(x_NW), one_W, zero_W, 1e-5, 0.0)
    wanted = torch.nn.functional.layer_norm(x_NW[-1:].float(), (768,))
    torch.testing.assert_close(found[-1:].float(), wanted, rtol=1e-2, atol=1e-2)
    assert not found[:-1].any()
    arriving_NW = torch.zeros_like(x_NW)
    arriving_NW[-1, 7] = 1
    slope_NW = torch.autograd.grad(found, x_NW, arriving_NW)[0]
    last = x_NW.detach()[-1:].float().requires_grad_()
    wanted_slope = torch.autograd.grad(torch.nn.functional.layer_norm(last, (768,))[0, 7], last)[0]
    assert not slope_NW[:-1].any()
    torch.testing.assert_close(slope_NW[-1:].float(), wanted_slope, rtol=2e-2, atol=1e-3)


def test_a_gelu_of_more_numbers_than_32_bits_count() -> None:
    x_NW = torch.zeros(2**31 // 3072 + 8, 3072, device="cuda", dtype=torch.float16)
    x_NW[-1, 5] = 1
    bias_W = torch.zeros(3072, device="cuda", dtype=torch.float16, requires_grad=True)
    found = kernels.biased_gelu(x_NW.requires_grad_(), bias_W)
    arriving_NW = torch.zeros_like(x_NW)
    arriving_NW[-1, 5:7] = 1
    slope_NW, of_bias_W = torch.autograd.grad(found, (x_NW, bias_W), arriving_NW)
    wanted_W = torch.zeros(3072, device="cuda")
    wanted_W[5:7] = torch.tensor([1.0833, 0.5], device="cuda")
    assert not slope_NW[:-1].any()
    torch.testing.assert_close(slope_NW[-1].float(), wanted_W, rtol=1e-3, atol=0.0)
    torch.testing.assert_close(of_bias_W.float(), wanted_W, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_passes_that_share_their_dropout_have_the_same_with_a_mask_that_learns(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    module = tiny_module(asa=ASAConfig(), dropout=0.3).train().to(device, dtype)
    engine, batch = Passes(module, OptimConfig(), 1, device), tiny_batch().to(device)
    keep_BLL = torch.ones(ROWS, LENGTH, LENGTH, device=device, requires_grad=True)
    with engine.same_dropout():
        clean, attacked = engine.probe(batch), engine.probe(batch, Perturb(attend=lambda site: keep_BLL))
    torch.testing.assert_close(attacked.logits, clean.logits, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("width", [384, 768, 1024, 2048])
def test_norms_of_real_widths(width: int, dtype: torch.dtype, dropout: float) -> None:
    made = operands(64 * 256 + 7, width, dtype)
    runs = [ours(made, dropout) for _ in range(2)]
    assert all(torch.equal(one, again) for one, again in zip(*runs, strict=True))
    for one, other in zip(runs[0], formulas(made, dropout), strict=True):
        assert error(one, other) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_losses_over_a_real_vocabulary(dtype: torch.dtype) -> None:
    logits, labels = case(500, 30522, torch.float32)
    logits, labels = logits.to("cuda", dtype).requires_grad_(), labels.to("cuda")
    wide = logits.detach().double().requires_grad_()
    ours, theirs = kernels.compare((logits,), labels), by_torch(wide, labels)
    assert all(error(one, other) < 1e-5 for one, other in zip(ours, theirs, strict=True))
    assert error(gradients(ours, logits), gradients(theirs, wide)) < TOLERANCES[dtype]


def test_losses_of_more_logits_than_32_bits_count() -> None:
    rows, classes = 2**31 // 30522 + 8, 30522
    logits = torch.zeros(rows, classes, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.no_grad():
        logits[-1, 7] = 5
    labels = torch.full((rows,), 7, device="cuda")
    found = kernels.cross_entropies(logits, labels)
    wanted = torch.nn.functional.cross_entropy(logits[-2:].double(), labels[-2:], reduction="none")
    torch.testing.assert_close(found[-2:].double(), wanted, rtol=1e-5, atol=0)
    slope = torch.autograd.grad(found[-1], logits)[0]
    assert not slope[:-1].any()
    torch.testing.assert_close(
        slope[-1].double().sum(), torch.zeros((), device="cuda", dtype=torch.double), atol=1e-2, rtol=0
    )
    assert slope[-1, 7] < -0.99
