"""Where attention is fused, and that nothing needs Triton where it is not."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asa import fused
from asa.adversary import ASAConfig
from asa.errors import Apart, WorkError
from asa.fused.probe import fault
from asa.methods import METHODS, At, MethodsConfig
from tests.asa.conftest import tiny_batch, tiny_engine, tiny_module
from tests.fused.oracle import DEVICE, SLOW_HERE

HERE = torch.device(DEVICE)
SHAPE = (4, 12, 2048, 128)


def test_the_defaults_are_fused_in_the_types_that_the_kernels_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_works", lambda *_: True)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert fused.supported(ASAConfig(), HERE, dtype, SHAPE)
    assert not fused.supported(ASAConfig(), HERE, torch.float64, SHAPE)


@pytest.mark.parametrize("changes", [{"mask": "gumbel"}, {"heads": "each"}, {"masked_score": "replaced"}], ids=str)
def test_other_kinds_of_map_are_not(changes: dict[str, Any]) -> None:
    assert not fused.supported(ASAConfig(**changes), HERE, torch.float16, SHAPE)


@pytest.mark.parametrize("shape", [(4, 12, 2049, 64), (4, 12, 128, 136), (6000, 12, 128, 64)])
def test_nor_are_sizes_that_the_kernels_were_not_made_for(shape: tuple[int, int, int, int]) -> None:
    assert not fused.supported(ASAConfig(), HERE, torch.float16, shape)


def test_gpus_without_the_units_or_the_shared_memory_are_left_alone() -> None:
    narrow, wide = [
        [c for c in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)) if fused._fits(c, w)] for w in (64, 65)
    ]
    assert narrow == [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert wide == [(9, 0), (10, 0)]


def test_a_cpu_is_left_alone_unless_a_test_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not fused.supported(ASAConfig(), torch.device("cpu"), torch.float16, SHAPE)


def test_a_triton_that_cannot_compile_is_told_once_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch = pytest.importorskip("asa.fused.launch")
    tried = []

    def pack(*args: Any) -> None:
        tried.append(args)
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    monkeypatch.setattr(launch, "pack", pack)
    fused._works.cache_clear()
    try:
        assert not any(fused.supported(ASAConfig(), HERE, torch.float16, SHAPE) for _ in range(2))
    finally:
        fused._works.cache_clear()
    assert len(tried) == 1
    assert caplog.messages == ["Triton cannot run here, so attention is not fused: Failed to find C compiler."]


@pytest.mark.parametrize(("name", "asked"), [("random_mask", 0), ("asa", 1)])
def test_the_kernels_are_tried_only_by_a_method_that_may_use_them(
    name: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []
    monkeypatch.setattr("asa.biased.fits", lambda *rest: tries.append(rest))
    engine = tiny_engine(tiny_module(asa=ASAConfig()))
    METHODS[name](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    assert bool(tries) == asked


SLOW = [pytest.param(x, marks=SLOW_HERE) for x in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("dtype", [torch.float16, *SLOW], ids=str)
def test_the_kernels_are_tried_before_they_are_used(dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    assert fault(HERE, dtype, 96) is None
    assert torch.equal(torch.get_rng_state(), before)


def wrong_key(found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return found[0], found[1] * 1.1, *found[2:]


def wrong_context(found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return found[0] * 1.1, *found[1:]


@pytest.mark.parametrize(
    ("part", "spoilt", "told"),
    [("backward", wrong_key, "gradient to k is off by 0.1"), ("forward", wrong_context, "context is off by 0.1")],
)
def test_kernels_that_compute_something_else_are_told_and_left_alone(
    part: str, spoilt: Any, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch = pytest.importorskip("asa.fused.launch")
    right = getattr(launch, part)
    monkeypatch.setattr(launch, part, lambda *args: spoilt(right(*args)))
    fused._works.cache_clear()
    try:
        assert not fused.supported(ASAConfig(), HERE, torch.float16, (1, 1, 8, 32))
    finally:
        fused._works.cache_clear()
    (message,) = caplog.messages
    assert message.startswith(f"Triton's kernels are wrong here, so attention is not fused: {told}")


@pytest.mark.parametrize(
    ("threshold", "share"),
    # None dropped; those dropped that stay.
    [pytest.param(0, 1.0, marks=SLOW_HERE), pytest.param(49152, 0.25, marks=SLOW_HERE)],
)
def test_a_wrong_share_of_dropout_on_which_all_kernels_agree_is_noticed(
    threshold: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch: Any = pytest.importorskip("asa.fused.launch")
    real = launch.spare
    monkeypatch.setattr(launch, "spare", lambda dropout: (threshold, real(dropout)[1]))
    told = re.fullmatch(r"dropout 0\.25 spares (.*) of the weights", fault(HERE, torch.float32, 32) or "")
    assert told is not None
    assert abs(float(told[1]) - share) < 0.03


def test_another_dropout_in_the_backward_pass_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pytest.importorskip("asa.fused.launch")
    right = launch.backward
    monkeypatch.setattr(launch, "backward", lambda saved, *rest: right(saved._replace(seed=saved.seed + 1), *rest))
    assert "with dropout 0.25" in (fault(HERE, torch.float16, 128) or "")


@pytest.mark.parametrize(
    ("why", "raised"),
    [
        ("CUDA out of memory. Tried to", RuntimeError),
        ("Triton Error [CUDA]: out of memory", RuntimeError),
        ("Triton Error [CUDA]: an illegal memory access was encountered", WorkError),
        ("CUDA error: an illegal instruction was encountered", WorkError),
        ("CUDA error: invalid program counter", WorkError),
        ("CUDA error: hardware stack error", WorkError),
        ("CUDA error: operation not supported on global/shared address space", WorkError),
        ("CUDA error: the launch timed out and was terminated", WorkError),
    ],
)
def test_full_memory_says_nothing_of_the_kernels_and_a_lost_gpu_ends_the_run(
    why: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = pytest.importorskip("asa.fused.launch")

    def pack(*args: Any) -> None:
        raise RuntimeError(why)

    monkeypatch.setattr(launch, "pack", pack)
    fused._works.cache_clear()
    with pytest.raises(raised, match=re.escape(why)):
        fused.supported(ASAConfig(), HERE, torch.float16, SHAPE)


@pytest.mark.parametrize("accumulates", [False, True])
def test_sums_are_whole_inside_and_as_they_were_outside(accumulates: bool) -> None:
    launch, settings = pytest.importorskip("asa.fused.launch"), torch.backends.cuda.matmul
    settings.allow_fp16_accumulation = accumulates
    try:
        before = [getattr(settings, name) for name in launch.REDUCED]
        with launch._whole_sums():
            assert not settings.allow_fp16_accumulation
            assert not settings.allow_fp16_reduced_precision_reduction
            assert not settings.allow_bf16_reduced_precision_reduction
        assert [getattr(settings, name) for name in launch.REDUCED] == before
        assert settings.allow_fp16_accumulation == accumulates
    finally:
        settings.allow_fp16_accumulation = False


def test_no_devices_leave_the_kernels_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_works", lambda *_: True)
    assert fused.supported(ASAConfig(), HERE, torch.float16, SHAPE)
    monkeypatch.setattr(fused, "DEVICES", set())
    assert not fused.supported(ASAConfig(), HERE, torch.float16, SHAPE)


@pytest.mark.parametrize(
    ("why", "raised", "said"),
    [
        (
            "invalid argument\nand more",
            Apart,
            r"kernel pack_kernel fails here \(invalid argument\); leave the kernels out by ASA_FUSED=0 in",
        ),
        ("CUDA out of memory", RuntimeError, "^CUDA out of memory$"),
    ],
)
def test_a_launch_that_fails_after_the_trial_says_what_leaves_the_kernels_out(
    why: str, raised: type[Exception], said: str
) -> None:
    launch = pytest.importorskip("asa.fused.launch")

    class Kernel:
        __name__ = "pack_kernel"

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise RuntimeError(why)

    with pytest.raises(raised, match=said):
        launch.run(Kernel(), (1,), torch.ones(1))


def test_every_launch_asks_for_products_and_sums_in_one_instruction() -> None:
    """Which is Triton's default till 3.9 alone, and 3.9 warns of that."""
    launch = pytest.importorskip("asa.fused.launch")
    asked: dict[str, Any] = {}

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **settings: asked.update(settings)

    launch.run(Kernel(), (1,), torch.ones(1), M=4)
    assert asked == {"M": 4, "enable_fp_fusion": True}
    options = pytest.importorskip("triton.backends.nvidia.compiler").CUDAOptions
    assert asked.keys() - {"M"} <= options.__dataclass_fields__.keys()


@pytest.mark.slow
def test_without_triton_all_is_as_before() -> None:
    program = """
import sys
sys.modules["triton"] = None
import torch, asa.attention, asa.fused, asa.methods
asa.fused.DEVICES.add("cpu")
print(asa.fused.supported(asa.ASAConfig(), torch.device("cpu"), torch.float16, (4, 12, 128, 64)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(("capability", "of"), [((9, 0), 9), ((8, 6), 8), ((10, 3), 10), ((12, 0), 12)])
def test_a_launch_takes_the_tiles_of_its_gpu(
    capability: tuple[int, int], of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = pytest.importorskip("asa.fused.launch")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    x: Any = SimpleNamespace(is_cuda=True, device="cuda:0", dtype=torch.float16)
    for kernel in launch.TIMED:
        assert launch._tiles(kernel, x, 64) == launch.tiles(kernel, torch.float16, 64, of)
    assert (launch._tiles("key", x, 64)["M"] == launch.TIMED["key"][0]) == (of in (9, 10))
