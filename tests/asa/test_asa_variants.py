"""ASA in FreeLB's passes, and ASA every k-th step, on some rows, in some layers."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from asa.adversary import Adversary, ASAConfig
from asa.errors import RequestError
from asa.losses import counted_units, divergence, penalty, task_loss
from asa.methods import METHODS, At, MethodsConfig, asa_sparse
from asa.methods.asa import ASA, ready
from asa.methods.asa_freelb import ASAFreeLB
from asa.methods.asa_sparse import ASASparse, ASASparseConfig
from asa.methods.freelb import FreeLBConfig
from asa.methods.subset import choose
from asa.model import Output
from asa.signal import Perturb
from tests.asa.conftest import KINDS, LENGTH, gradients, tiny_batch, tiny_module
from tests.asa.test_methods import Watched

CONFIG = ASAConfig(tau=0.3)


def engine_for(kind: Any) -> Watched:
    torch.manual_seed(0)
    return Watched(tiny_module(kind, CONFIG))


def after(method: Any, kind: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients and terms of one micro-batch."""
    engine = engine_for(kind)
    terms = method.backward(engine, tiny_batch(kind), At(0, 0))
    return gradients(engine.module), terms


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_on_every_step_and_row_is_asa(kind: Any) -> None:
    expected, found = after(ASA(CONFIG), kind), after(ASASparse(CONFIG, ASASparseConfig(every=1)), kind)
    same(found[0], expected[0])
    same(found[1], expected[1])


@pytest.mark.parametrize("kind", ["classification", "mlm"])
def test_some_rows_share_the_inputs_that_all_share(kind: Any) -> None:
    """Position ids of [1, L], say."""
    method, found = ASASparse(CONFIG, ASASparseConfig(every=1, share=0.7)), []
    for inputs in ({}, {"position_ids": torch.arange(LENGTH)[None]}):
        batch, engine = tiny_batch(kind), engine_for(kind)
        method.backward(engine, replace(batch, inputs=batch.inputs | inputs), At(0, 0))
        found.append(gradients(engine.module))
    same(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_the_rows_gives_asas_gradient_on_average(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = after(ASA(CONFIG), kind)
    batch = tiny_batch(kind)
    rows = len(batch.inputs["input_ids"])
    found = []
    for row in range(rows):
        monkeypatch.setattr(torch, "randperm", lambda count, row=row, **_: torch.arange(count).roll(-row))
        found.append(after(ASASparse(CONFIG, ASASparseConfig(every=1, share=1 / rows)), kind))
    for part in (0, 1):
        same({name: sum(f[part][name] for f in found) / rows for name in expected[part]}, expected[part])  # type: ignore[arg-type]


@pytest.mark.parametrize("question", [0, 1])
def test_a_share_of_questions_of_unlike_many_answers_masks_no_more_than_all(
    question: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares are of sequences, of which question 0 has two and question 1 one, the other a filler."""
    engine, batch = engine_for("choice"), tiny_batch("choice", rows=2)
    assert engine.module.adversary is not None
    with torch.no_grad():
        for name, p in engine.module.adversary.named_parameters():
            p.fill_(0.0 if p.ndim > 1 else -1.0 if "key" in name else 1.0)  # every score is negative
    batch.inputs["attention_mask"][1, 1] = 0
    monkeypatch.setattr(torch, "randperm", lambda count, **_: torch.arange(count).roll(-question))
    method = ASASparse(CONFIG, ASASparseConfig(every=1, share=0.5))
    terms = method.backward(engine, replace(batch, total_rows=3), At(0, 0))
    torch.testing.assert_close(terms["masked_share"], torch.ones(len(terms["masked_share"])))


def test_the_rows_are_drawn_and_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    monkeypatch.setattr(asa_sparse, "choose", lambda batch, rows: seen.append(rows.tolist()) or choose(batch, rows))
    method = ASASparse(CONFIG, ASASparseConfig(every=1, share=0.6))
    for seed in range(20):
        engine = engine_for("classification")
        torch.manual_seed(seed)
        method.backward(engine, tiny_batch("classification"), At(0, 0))
    assert {len(rows) for rows in seen} == {2}
    assert len({tuple(sorted(rows)) for rows in seen}) == 3


def test_the_attack_comes_every_k_th_step_also_after_a_restart() -> None:
    method, seen = ASASparse(CONFIG, ASASparseConfig(every=3)), []
    for step in range(7):
        if step == 4:
            state = method.state_dict()
            method = ASASparse(CONFIG, ASASparseConfig(every=3))
            method.load_state_dict(state)
        found, terms = after(method, "mlm")
        seen.append("masked_share" in terms)
        assert seen[-1] == any(name.startswith("adversary") for name in found)
        method.after_step(engine_for("mlm"))
    assert seen == [False, False, True, False, False, True, False]


def test_only_the_chosen_layers_are_attacked() -> None:
    found, terms = after(ASASparse(CONFIG, ASASparseConfig(every=1, layers=(1,))), "mlm")
    assert {name.split(".")[1] for name in found if name.startswith("adversary")} == {"1"}
    assert terms["masked_share"][0] == 0 < terms["masked_share"][1]


@pytest.mark.parametrize(
    ("asa", "options", "flag"),
    [
        (CONFIG, ASASparseConfig(layers=(0, 2), every=1), "--asa_sparse.layers"),
        (CONFIG, ASASparseConfig(layers=(0, 2), every=3), "--asa_sparse.layers"),  # at once, not at the third step
        (ASAConfig(dropout="shared"), ASASparseConfig(share=0.5), "--asa_sparse.share"),
    ],
)
def test_settings_that_do_not_fit_are_refused(asa: ASAConfig, options: ASASparseConfig, flag: str) -> None:
    with pytest.raises(RequestError, match=flag):
        after(ASASparse(asa, options), "mlm")


@pytest.mark.parametrize("kind", KINDS)
def test_asa_and_freelb_share_freelbs_passes(kind: Any) -> None:
    """Two passes: the clean one, and one with words and attention attacked, which is compared with the first."""
    engine, batch = engine_for(kind), tiny_batch(kind)
    calls: list[Perturb | None] = []
    original = engine.forward
    engine.forward = lambda batch, perturb=None, tap=None: calls.append(perturb) or original(batch, perturb, tap)  # type: ignore[method-assign]
    terms = ASAFreeLB(CONFIG, FreeLBConfig()).backward(engine, batch, At(0, 0))
    assert [(bool(p and p.attend)) for p in calls] == [False, True]
    assert engine.backwards == 2
    other = engine_for(kind)
    attend, maps = ready(other, batch, CONFIG)
    clean = other.module(batch)
    hit = other.module(batch, Perturb(engine.deltas[-1], attend))
    cls = None if clean.cls_BD is None else clean.cls_BD.detach()
    parts = divergence(Output(clean.logits.detach(), cls), hit, batch, CONFIG)
    kept = torch.stack([counted_units(m.kept(), batch.pad_BL, "valid") for m in maps.values()]).sum()
    loss = (task_loss(clean, batch) + task_loss(hit, batch)) / 2 + penalty(kept, batch, CONFIG.tau)
    loss = loss + torch.stack(list(parts.values())).sum()
    loss.backward()
    torch.testing.assert_close(terms["loss"], loss.detach())
    same(gradients(engine.module), gradients(other.module))


def test_asa_freelb_needs_a_pass_to_compare_with() -> None:
    with pytest.raises(RequestError, match=r"--freelb\.passes"):
        METHODS["asa_freelb"](MethodsConfig(freelb=FreeLBConfig(passes=1)))
    clean = FreeLBConfig(passes=2, clean_first=True)
    with pytest.raises(RequestError, match=r"is ASA alone: .*; raise --freelb\.passes or --freelb\.start$"):
        METHODS["asa_freelb"](MethodsConfig(freelb=clean))
    for seen in (replace(clean, passes=3), replace(clean, start=0.1)):
        METHODS["asa_freelb"](MethodsConfig(freelb=seen))


def test_asa_freelb_shares_no_dropout_with_the_released_programs_attention() -> None:
    replaced = MethodsConfig(asa=ASAConfig(masked_score="replaced"))
    with pytest.raises(RequestError, match=r"set --freelb\.dropout independent or --asa\.masked_score shifted"):
        METHODS["asa_freelb"](replaced)
    METHODS["asa_freelb"](replace(replaced, freelb=FreeLBConfig(dropout="independent")))


def test_each_pass_of_asa_freelb_has_its_own_gumbel_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    gumbel, draw, drawn = ASAConfig(mask="gumbel"), Adversary.noise, []
    monkeypatch.setattr(Adversary, "noise", lambda self, pad: drawn.append(draw(self, pad)) or drawn[-1])
    engine = Watched(tiny_module("mlm", gumbel))
    ASAFreeLB(gumbel, FreeLBConfig(passes=3)).backward(engine, tiny_batch(), At(0, 0))
    assert len(drawn) == 4  # two attacked passes, two layers
    assert not any(torch.equal(one, other) for one, other in combinations(drawn, 2))
