"""Losses: against torch's and Hugging Face's own, and additive over a window."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch, Kind
from asa.errors import RequestError
from asa.losses import between, counted_units, divergence, kept_keys, masked_share, penalty, task_loss
from asa.model import Output
from asa.signal import Perturb
from tests.asa.conftest import KINDS, LENGTH, ROWS, attend_to, random_keeps, tiny_batch, tiny_module

# N distributions, C classes, B rows, L length

seeds = st.integers(0, 2**31)


def logits_of(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both_kls(p_NC: Tensor, q_NC: Tensor) -> tuple[Tensor, Tensor]:
    p_NC, q_NC = p_NC.log_softmax(-1), q_NC.log_softmax(-1)
    there = F.kl_div(q_NC, p_NC, log_target=True, reduction="none").sum(-1)
    return there, F.kl_div(p_NC, q_NC, log_target=True, reduction="none").sum(-1)


@given(seeds, seeds, st.floats(0.01, 20))
def test_the_symmetric_divergence_is_half_of_both_torch_kls(one: int, other: int, scale: float) -> None:
    p_NC, q_NC = logits_of(one, scale), logits_of(other, scale)
    there, back = both_kls(p_NC, q_NC)
    torch.testing.assert_close(between(p_NC, q_NC, ASAConfig()), (there + back) / 2)


@given(seeds, seeds)
def test_it_is_symmetric_and_not_negative_and_zero_at_equality(one: int, other: int) -> None:
    p_NC, q_NC = logits_of(one), logits_of(other)
    found = between(p_NC, q_NC, ASAConfig())
    assert (found >= 0).all()
    torch.testing.assert_close(found, between(q_NC, p_NC, ASAConfig()))
    assert between(p_NC, p_NC, ASAConfig()).abs().max() == 0


@pytest.mark.parametrize("kind", ["symmetric", "one_sided"])
def test_gradients_of_divergences_are_those_of_finite_differences(kind: Any) -> None:
    p_NC, q_NC = (logits_of(seed).requires_grad_() for seed in (0, 1))
    assert torch.autograd.gradcheck(lambda p, q: between(p, q, ASAConfig(divergence=kind)), (p_NC, q_NC))


def hugging_face_labels(batch: Batch) -> Tensor:
    if batch.positions is None:
        return batch.labels
    labels = torch.full((batch.inputs["input_ids"].numel(),), IGNORE)
    labels[batch.positions] = batch.labels
    return labels.reshape(batch.inputs["input_ids"].shape)


@pytest.mark.parametrize("kind", KINDS)
def test_task_loss_and_its_gradient_equal_hugging_faces(kind: Kind) -> None:
    module, batch = tiny_module(kind), tiny_batch(kind)
    theirs = module.model(**batch.inputs, labels=hugging_face_labels(batch)).loss
    ours = task_loss(module(batch), batch)
    torch.testing.assert_close(ours, theirs)
    parameters = [p for p in module.parameters() if p.requires_grad]
    pairs = [torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (ours, theirs)]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def seen(batch: Batch) -> Tensor:
    """Every query sees the keys that are no padding."""
    return ~batch.pad_BL[:, None, :]


def terms(module: Any, batch: Batch, config: ASAConfig) -> dict[str, Tensor]:
    """Every loss of a batch, the attacked branch under the same (constant) keep map in every row."""
    rows = batch.pad_BL.shape[0]
    keep_LL = random_keeps(0)[0][1]
    keep_BLL = keep_LL.expand(rows, LENGTH, LENGTH)
    clean = module(batch)
    attacked = moved(clean)
    kept = counted_units(kept_keys(keep_BLL), batch.pad_BL, "valid")
    return {
        "task": task_loss(clean, batch),
        **divergence(clean, attacked, batch, config),
        "penalty": penalty(kept, batch, 0.3),
        "share": masked_share(keep_BLL, seen(batch), batch.pad_BL) / batch.total_rows,
    }


def moved(out: Output) -> Output:
    """Another output, each row's a function of the same row."""
    return Output(*(None if x is None else 2 * x + x.cos() for x in (out.logits, out.cls_BD, out.cls_logits)))  # type: ignore[arg-type]


def cut(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, its totals still those of the whole."""
    inputs = {name: tensor[rows] for name, tensor in batch.inputs.items()}
    if batch.positions is None:
        return replace(batch, inputs=inputs, labels=batch.labels[rows])
    start = rows.start * LENGTH
    mine = (batch.positions >= start) & (batch.positions < rows.stop * LENGTH)
    return replace(batch, inputs=inputs, labels=batch.labels[mine], positions=batch.positions[mine] - start)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"divergence": "one_sided"},
    {"stop_gradient": True},
    {"sentence": "head"},
    {"sentence": "mse"},
    {"sentence": "cosine"},
    {"token_mean": "rows"},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


@each_option
@pytest.mark.parametrize("kind", KINDS)
def test_the_terms_of_two_pieces_add_up_to_those_of_the_whole(kind: Kind, options: dict[str, Any]) -> None:
    config = ASAConfig(**options)
    module, batch = tiny_module(kind, config), tiny_batch(kind)
    whole = terms(module, batch, config)
    one, two = (terms(module, cut(batch, rows), config) for rows in (slice(0, 1), slice(1, ROWS)))
    assert all(value.abs() > 0 for value in whole.values())
    for name, value in whole.items():
        torch.testing.assert_close(one[name] + two[name], value, msg=name)


@each_option
@pytest.mark.parametrize("kind", KINDS)
def test_the_divergence_of_equal_outputs_is_zero_and_of_others_is_not(kind: Kind, options: dict[str, Any]) -> None:
    config, batch = ASAConfig(**options), tiny_batch(kind)
    out = tiny_module(kind, config)(batch)
    assert all(abs(value) < 1e-6 for value in divergence(out, out, batch, config).values())
    assert all(value > 1e-3 for value in divergence(out, moved(out), batch, config).values())


@pytest.mark.parametrize("sentence", ["hidden_softmax", "head", "mse", "cosine"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_stop_gradient_the_clean_pass_learns_nothing(kind: Kind, sentence: Any) -> None:
    for stop in (True, False):
        config, batch = ASAConfig(stop_gradient=stop, sentence=sentence), tiny_batch(kind)
        clean, other = tiny_module(kind, config)(batch), tiny_module(kind, config, seed=1)(batch)
        leaves = [x for x in (clean.logits, clean.cls_BD, clean.cls_logits) if x is not None]
        loss = torch.stack(list(divergence(clean, other, batch, config).values())).sum()
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        assert stop == all(g is None or g.abs().max() == 0 for g in found)


@given(seeds, seeds, st.floats(0.01, 20))
def test_the_one_sided_divergence_is_the_kl_from_the_clean_prediction(one: int, other: int, scale: float) -> None:
    p_NC, q_NC = logits_of(one, scale), logits_of(other, scale)
    logs_p_NC, logs_q_NC = p_NC.log_softmax(-1), q_NC.log_softmax(-1)
    expected = (logs_p_NC.exp() * (logs_p_NC - logs_q_NC)).sum(-1)
    torch.testing.assert_close(between(p_NC, q_NC, ASAConfig(divergence="one_sided")), expected)


def test_sentence_terms_are_what_they_are_called() -> None:
    batch, rng = tiny_batch(), torch.Generator().manual_seed(0)
    clean, other = (Output(*(torch.randn(n, 7, generator=rng) for n in (len(batch.labels), ROWS, ROWS))) for _ in "ab")
    assert clean.cls_BD is not None
    assert other.cls_BD is not None
    a_BD, b_BD = clean.cls_BD, other.cls_BD

    def found(sentence: Any) -> Tensor:
        return divergence(clean, other, batch, ASAConfig(sentence=sentence))["asa_sentence"]

    cosines_B = (a_BD * b_BD).sum(-1) / (a_BD.norm(dim=-1) * b_BD.norm(dim=-1))
    torch.testing.assert_close(found("cosine"), (1 - cosines_B).mean())
    torch.testing.assert_close(found("mse"), (a_BD - b_BD).square().mean())
    pair = (clean.cls_logits, other.cls_logits)
    for sentence, (p, q) in {"hidden_softmax": (a_BD, b_BD), "head": pair}.items():
        assert p is not None
        assert q is not None
        there, back = both_kls(p, q)
        torch.testing.assert_close(found(sentence), (there + back).mean() / 2)


def test_the_divergence_of_unlabelled_tokens_does_not_count() -> None:
    module, batch = tiny_module("token"), tiny_batch("token")
    clean = module(batch)
    elsewhere = clean.logits + 5 * torch.randn_like(clean.logits) * batch.pad_BL[:, :, None]
    assert divergence(clean, Output(elsewhere), batch, ASAConfig())["asa"] == 0
    assert divergence(clean, Output(elsewhere), batch, ASAConfig(token_mean="rows"))["asa"] > 0


def test_the_penalty_is_tau_squared_times_the_attended_units_of_real_queries_per_row() -> None:
    batch = tiny_batch()
    keep_BLL = torch.zeros(ROWS, LENGTH, LENGTH)
    keep_BLL[0, 0, :4] = 1  # a real query
    keep_BLL[2, 9, :3] = 1  # a padding query
    assert counted_units(kept_keys(keep_BLL), batch.pad_BL, "valid") == 4
    assert counted_units(kept_keys(keep_BLL), batch.pad_BL, "all") == 7
    torch.testing.assert_close(penalty(torch.tensor(4.0), batch, 0.5), torch.tensor(0.25 * 4 / ROWS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_share_of_more_pairs_than_a_type_holds_is_right(dtype: torch.dtype) -> None:
    keep_BLL, seen_BLL = torch.ones(1, 512, 512), torch.ones(1, 1, 512, dtype=torch.bool)
    keep_BLL[..., ::10] = 0
    pad_BL = torch.zeros(1, 512, dtype=torch.bool)
    exact, found = (masked_share(one, seen_BLL, pad_BL) for one in (keep_BLL, keep_BLL.to(dtype)))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact)


def test_more_units_than_fp16_holds_are_counted() -> None:
    keep_BLL, pad_BL = torch.ones(8, 128, 128, dtype=torch.float16), torch.zeros(8, 128, dtype=torch.bool)
    assert counted_units(kept_keys(keep_BLL), pad_BL, "valid") == 8 * 128 * 128


def test_the_masked_share_counts_real_pairs_only() -> None:
    batch = tiny_batch()
    real_BLL = ~(batch.pad_BL[:, :, None] | batch.pad_BL[:, None, :])
    assert masked_share(real_BLL.float(), seen(batch), batch.pad_BL) == 0
    assert masked_share(torch.zeros(ROWS, LENGTH, LENGTH), seen(batch), batch.pad_BL) == ROWS
    keep_BLL = torch.ones(ROWS, LENGTH, LENGTH)
    keep_BLL[2, :2] = 0  # 2 of row 2's 5 real queries
    torch.testing.assert_close(masked_share(keep_BLL, seen(batch), batch.pad_BL), torch.tensor(0.4))
    window_BLL = seen(batch) & (torch.ones(LENGTH, LENGTH).tril().triu().bool())  # a local layer that sees one key
    torch.testing.assert_close(masked_share(keep_BLL, window_BLL, batch.pad_BL), torch.tensor(0.4))
    by_head = torch.stack([keep_BLL, torch.ones_like(keep_BLL)], dim=1)
    torch.testing.assert_close(masked_share(by_head, seen(batch), batch.pad_BL), torch.tensor(0.2))
    torch.testing.assert_close(counted_units(kept_keys(by_head), batch.pad_BL, "all"), torch.tensor(300 - 10.0))


def test_an_attacked_pass_diverges() -> None:
    """The keep maps of the other tests do change what the model says."""
    module, batch = tiny_module(), tiny_batch()
    attacked = module(batch, Perturb(attend=attend_to(random_keeps(3))))
    assert all(value > 1e-4 for value in divergence(module(batch), attacked, batch, ASAConfig()).values())


def test_a_softmax_across_the_batch_is_refused_where_a_pass_has_a_part_of_it() -> None:
    """Of one row it is always 1, and the divergence 0."""
    batch, config = tiny_batch("regression"), ASAConfig(regression="batch_softmax")
    clean, other = (Output(torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(seed))) for seed in (0, 1))
    assert divergence(clean, other, batch, config)["asa"] > 0
    with pytest.raises(RequestError, match=r"compares all 6 rows of a batch, and one pass has 3; set --asa"):
        divergence(clean, other, replace(batch, total_rows=6, total_labels=6), config)


@pytest.mark.parametrize("regression", ["squared", "batch_softmax"])
def test_a_head_without_a_last_axis_may_have_a_batch_of_one_row(regression: Any) -> None:
    batch, config = tiny_batch("regression"), ASAConfig(regression=regression)
    one = replace(batch, labels=batch.labels[:1], total_rows=1, total_labels=1)
    clean, other = (Output(torch.tensor([number])) for number in (1.0, 3.0))
    assert divergence(clean, other, one, config)["asa"] == {"squared": 4, "batch_softmax": 0}[regression]


@pytest.mark.parametrize("count", [3, ROWS])
def test_a_regression_of_several_numbers_a_row_is_refused(count: int) -> None:
    batch = tiny_batch("regression")
    with pytest.raises(RequestError, match=rf"gives \[{ROWS}, {count}\] numbers for {ROWS} labels"):
        task_loss(Output(torch.zeros(ROWS, count)), batch)
    twice = replace(batch, labels=batch.labels.unsqueeze(1).expand(ROWS, 2))
    with pytest.raises(RequestError, match="a regression has one a row"):
        task_loss(Output(torch.zeros(ROWS, 2)), twice)
