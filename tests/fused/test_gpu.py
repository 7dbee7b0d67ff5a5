"""The kernels on a real GPU, at real sizes."""

import pytest
import torch

from tests.fused.oracle import fused, plain, problem
from tests.fused.test_attention import check

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [128, 256, 509, 2048])
def test_sizes_of_bert_base(length: int, dtype: torch.dtype) -> None:
    large = problem((2, 12, length, 64), 768, dtype, (length // 3,), dropout=0)
    check(fused(large), plain(large), dtype)


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
