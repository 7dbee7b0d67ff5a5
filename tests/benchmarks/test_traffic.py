"""What the count of a GPU's step says of single operations, of the kernels, and of ASA's step, which is held to it."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from asa.methods import METHODS
from benchmarks.steps import ASA, PEERS, VANILLA, bert_config
from benchmarks.traffic import Count, method_traffic, total, traffic
from tests.benchmarks.test_flops import LAYERS, ROWS, WIDTH, by_hand

pytest.importorskip("triton", reason="no Triton here")

A, B = 6, 4  # of small matrices in fp32
BOUNDS = 2.25, 2.0, 2.2  # of BERT-base's ASA step by vanilla's: bytes, launches, the rule's time
OPERATIONS: dict[str, tuple[Any, int, int]] = {  # what is done with x_AB and w_BA; numbers moved; FLOPs
    "product": (lambda x, w: x @ w, 2 * A * B + A * A, 2 * A * B * A),
    "sum of two": (lambda x, w: x + w.T, 3 * A * B, 0),
    "of one twice": (lambda x, w: x * x, 2 * A * B, 0),
    "in place": (lambda x, w: x.add_(1), 2 * A * B, 0),
    "written over": (lambda x, w: x.zero_(), A * B, 0),
    "copied": (lambda x, w: x.copy_(w.T), 2 * A * B, 0),
    "expanded": (lambda x, w: x + w[0].expand(2, A).T[:, :1], 2 * A * B + A, 0),
    "rows of a table": (lambda x, w: x[torch.empty(3, dtype=torch.int32)], 2 * 3 * B + 3, 0),
    "beta 0": (lambda x, w: torch.addmm(torch.empty(A, A), x, w, beta=0), 2 * A * B + A * A, 2 * A * B * A),
    "with room given": (lambda x, w: torch.add(x, 1, out=torch.empty(A, B)), 2 * A * B, 0),
    "like another": (lambda x, w: torch.zeros_like(x), A * B, 0),
    "drawn": (lambda x, w: x.bernoulli_(0.5), A * B, 0),
    "new": (lambda x, w: x.new_ones(3), 3, 0),
    "put in rows": (lambda x, w: x.index_put_([torch.empty(2, dtype=torch.int32)], w[:2, :B]), 3 * 2 * B + 2, 0),
    "a view": (lambda x, w: x.T[1:].unsqueeze(0).squeeze_().detach(), 0, 0),
    "room alone": (lambda x, w: torch.empty_like(x), 0, 0),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_moves_what_it_reads_and_writes(operation: str) -> None:
    work, numbers, flops = OPERATIONS[operation]
    with FakeTensorMode():
        x_AB, w_BA = torch.empty(A, B), torch.empty(B, A)
        with Count() as counter:
            work(x_AB, w_BA)
    found = total(counter.found.values())
    assert found[:3] == (int(numbers > 0), 4 * numbers, flops)
    assert (found.ms > 0) == (numbers > 0)


def test_the_longer_of_bytes_and_products_is_the_time() -> None:
    counter = Count()
    counter.note("bytes", int(4.1e9), 1)
    counter.note("products", 1, int(690e9))
    counter.note("our kernel", 1, int(989e9 * 0.35))
    assert [round(one.ms, 6) for one in counter.found.values()] == [1, 1, 1]
    assert total(counter.found.values()).launches == 3


def test_a_steps_products_are_the_hand_formula_and_each_layer_has_its_kernels() -> None:
    length = 40
    found = {
        name: method_traffic(bert_config(LAYERS, WIDTH, "sdpa"), name, "mlm", ROWS, length) for name in (VANILLA, ASA)
    }
    # Attention backwards makes its scores again, since none are laid out.
    once = LAYERS * ROWS * 2 * length**2 * WIDTH
    assert total(found[VANILLA].values()).flops == by_hand(length)[VANILLA] + once
    ours = {name.removeprefix("our "): work.launches for name, work in found[ASA].items() if name.startswith("our ")}
    assert ours == {**dict.fromkeys(("pack", "forward", "query", "key", "slope"), LAYERS), "entropy": 2, "gradient": 2}
    # Of the attacked rows 11 in place of 6, of the clean ones 7, and the map's scores are made twice.
    assert total(found[ASA].values()).flops == by_hand(length)[ASA] + (5 + 1 + 1) * once


def test_no_path_of_a_cpu_is_taken_and_all_are_afterwards() -> None:
    from asa import cpu_attention, fused

    before = cpu_attention._ours, set(fused.DEVICES)
    found = method_traffic(bert_config(LAYERS, WIDTH, "sdpa"), ASA, "mlm", 64, 64)
    assert (cpu_attention._ours, fused.DEVICES) == before
    assert not {"bernoulli_", "random_", "_scaled_dot_product_flash_attention_for_cpu"} & found.keys()
    assert found["native_dropout"].launches == 2 * LAYERS + 1


def test_norms_of_large_tensors_are_kernels_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asa.fused.FEWEST_NUMBERS", 64 * 64 * WIDTH)
    found = method_traffic(bert_config(LAYERS, WIDTH, "sdpa"), VANILLA, "mlm", 64, 64)
    # All but the last block's, which see what is read alone; the embeddings' dropout is torch's.
    ours = {name: found[f"our {name}"].launches for name in ("norm", "norm_gradient", "shares")}
    assert ours == dict.fromkeys(ours, 2 * (LAYERS - 1))
    assert found["native_dropout"].launches == 2 + 1


def test_bert_base_stays_within_its_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios to vanilla of bytes, launches and the rule's time."""
    traffic(["--results", "null", "--lengths", "256", "--operations", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("BERT-base, mlm, 64 rows of 256, bf16")
    ratios = [float(ratio) for ratio in lines[3].split()[-3:]]
    assert lines[3].startswith("asa ")
    assert all(one <= bound for one, bound in zip(ratios, BOUNDS, strict=True)), ratios
    assert lines[-1].startswith("mm ")


def test_a_peers_products_are_the_hand_formula_and_no_kernel_is_ours() -> None:
    length = 40
    found = {name: method_traffic(bert_config(LAYERS, WIDTH, "sdpa"), name, "mlm", ROWS, length) for name in PEERS}
    once = LAYERS * ROWS * 2 * length**2 * WIDTH
    assert total(found["stock"].values()).flops == by_hand(length)["stock"] + once
    assert not [name for works in found.values() for name in works if name.startswith("our ")]
    assert "torch's attention" not in found["twin"]


@pytest.mark.slow
def test_every_method_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    traffic(["--results", "null", "--lengths", "128", "--methods", "all", "--task", "classification"])
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(METHODS)
