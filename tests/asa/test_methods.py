"""What every method of the registry promises, whatever it does: on all kinds of tasks, on the plain engine."""

import copy
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import PlainEngine
from asa.errors import RequestError
from asa.methods import METHODS, At, MethodsConfig, flags_unread, groups_read
from asa.methods.asa_sparse import ASASparseConfig
from asa.methods.creat import CreATConfig
from asa.methods.fgm import FGMConfig
from asa.methods.freeat import FreeATConfig
from asa.methods.freelb import FreeLBConfig
from asa.methods.pgd import PGDConfig
from asa.methods.r3f import R3FConfig
from asa.methods.r_drop import RDropConfig
from asa.methods.random_mask import RandomMaskConfig
from asa.methods.smart import SMARTConfig
from asa.methods.smart_released import SMARTReleasedConfig
from asa.methods.smoothness import SmoothConfig
from asa.methods.vat import VATConfig
from asa.methods.yopo import YOPOConfig
from asa.model import Output, TaskModel
from asa.optim import OptimConfig
from asa.perturb import Room, norms
from asa.signal import Perturb, Tap
from tests.asa.conftest import CPU, KINDS, gradients, tiny_batch, tiny_bert, tiny_module

# B rows, D width, L length

STILL: dict[str, Any] = {"step_size": 0.0, "start": 0.0}
WEAK = MethodsConfig(  # nothing of any adversary is left
    pgd=PGDConfig(**STILL),
    freelb=FreeLBConfig(**STILL),
    freeat=FreeATConfig(**STILL, replays=1),
    yopo=YOPOConfig(**STILL),
    creat=CreATConfig(**STILL),
    fgm=FGMConfig(weight=0.0),
    smart=SMARTConfig(weight=0.0, proximal=0.0),
    smart_released=SMARTReleasedConfig(weight=0.0),
    alum=SmoothConfig(weight=0.0),
    vat=VATConfig(weight=0.0),
    r3f=R3FConfig(weight=0.0),
    r_drop=RDropConfig(weight=0.0),
    random_mask=RandomMaskConfig(share=1e-9, strategy="magnitude"),
    asa_sparse=ASASparseConfig(every=1),
    outside={"size": 0.0},
)
WALK: dict[str, Any] = {"radius": 0.2, "step_size": 0.15, "start": 0.1}
LOUD = MethodsConfig(
    pgd=PGDConfig(**WALK, ascents=3),
    freelb=FreeLBConfig(**WALK, passes=4),
    freeat=FreeATConfig(**WALK, replays=3),
    yopo=YOPOConfig(**WALK),
    creat=CreATConfig(radius=0.2, step_size=0.15, ascents=2),
    smart=SMARTConfig(radius=0.05, noise=0.05, step_size=0.02),
    alum=SmoothConfig(radius=0.05, noise=0.05, step_size=0.02),
    r3f=R3FConfig(noise=0.1),
    vat=VATConfig(distance=0.1),  # at 1e-3 its direction is half made of rounding
    asa_sparse=ASASparseConfig(every=1),
    outside={"size": 0.1},
)
LINF = MethodsConfig(
    pgd=replace(LOUD.pgd, ball="linf"),
    freelb=replace(LOUD.freelb, ball="linf"),
    freeat=replace(LOUD.freeat, ball="linf"),
    yopo=replace(LOUD.yopo, ball="linf"),
    creat=replace(LOUD.creat, ball="linf"),
    fgm=FGMConfig(ball="linf"),
)
BALLS: dict[str, Any] = {"freelb": "freelb", "asa_freelb": "freelb", "pgd": "pgd", "freeat": "freeat", "yopo": "yopo"}


class Watched(PlainEngine):
    """Notes what a method does: perturbations in order, backwards, and that ascents leave parameters alone."""

    def __init__(self, module: TaskModel) -> None:
        super().__init__(module, OptimConfig(lr=1e-2, warmup=0.0), steps=10, device=CPU)
        self.deltas: list[Tensor] = []
        self.backwards = 0

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        self._note(perturb)
        return super().forward(batch, perturb, tap)

    def probe(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        self._note(perturb)
        return super().probe(batch, perturb, tap)

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        before = gradients(self.module)
        found = super().ascend(loss, wrt, scaled)
        after = gradients(self.module)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        return found

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        super().backward(loss)

    def _note(self, perturb: Perturb | None) -> None:
        if perturb is not None and perturb.embed_BLD is not None:
            self.deltas.append(perturb.embed_BLD.detach().clone())


def module_for(name: str, kind: Any, keeps_all: bool = False, **options: Any) -> TaskModel:
    module = tiny_module(kind, ASAConfig() if METHODS[name](LOUD).uses_adversary else None, **options)
    if keeps_all and module.adversary is not None:
        with torch.no_grad():
            for adversary in module.adversary:
                for p in adversary.parameters():
                    p.fill_(1.0 if p.ndim == 1 else 0.0)
    return module


def run(name: str, kind: Any, options: MethodsConfig, keeps_all: bool = False) -> tuple[Watched, dict[str, Tensor]]:
    """One window with all its replays but no update between them."""
    engine, method = Watched(module_for(name, kind, keeps_all)), METHODS[name](options)
    torch.manual_seed(3)
    terms: dict[str, Tensor] = {}
    for replay in range(method.replays):
        terms = method.backward(engine, tiny_batch(kind), At(0, replay))
    return engine, terms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_without_strength_every_method_is_plain_training(name: str, kind: Any) -> None:
    expected = gradients(run("vanilla", kind, WEAK)[0].module)
    found = gradients(run(name, kind, WEAK, keeps_all=True)[0].module)
    assert expected.keys() == {key for key in found if key.startswith("model.")}
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6, msg=f"{key} of {name}")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("vanilla", "r_drop")])
def test_with_strength_none_is(name: str) -> None:
    """Save R-Drop, where the model has no dropout."""
    expected = gradients(run("vanilla", "mlm", LOUD)[0].module)
    found = gradients(run(name, "mlm", LOUD)[0].module)
    assert max((found[key] - value).abs().max() for key, value in expected.items()) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_leaves_the_weights_alone_and_counts_its_backwards(name: str, kind: Any) -> None:
    before = {key: p.clone() for key, p in module_for(name, kind).named_parameters()}
    engine, terms = run(name, kind, LOUD)
    assert all(torch.equal(before[key], p) for key, p in engine.module.named_parameters())
    method = METHODS[name](LOUD)
    assert engine.backwards == method.passes * method.replays
    assert not any(term.requires_grad for term in terms.values())
    assert terms["loss"].isfinite()


def room_of(kind: Any) -> Room:
    batch = tiny_batch(kind)
    return Room(~batch.pad_BL, len(batch.inputs["input_ids"]), 16)


@pytest.mark.parametrize("kind", ["mlm", "choice"])
@pytest.mark.parametrize("options", [LOUD, LINF], ids=["l2", "linf"])
@pytest.mark.parametrize("name", BALLS)
def test_perturbations_stay_in_their_ball_reach_it_and_leave_padding_alone(
    name: str, options: MethodsConfig, kind: Any
) -> None:
    engine, room = run(name, kind, options)[0], room_of(kind)
    settings = getattr(options, BALLS[name])
    begun, *later = engine.deltas
    assert 0 < norms(begun, room, settings.ball).max() <= settings.start
    sizes = torch.stack([norms(delta, room, settings.ball) for delta in later])
    assert sizes.max() <= settings.radius * (1 + 1e-5)
    assert sizes[-1].min() > 0.9 * settings.radius
    assert all(delta[~room.real_RL].count_nonzero() == 0 for delta in engine.deltas)


@pytest.mark.parametrize("kind", ["mlm", "choice", "token"])
@pytest.mark.parametrize("name", ["smart", "alum", "smart_released", "vat", "r3f", "fgm", "creat"])
def test_other_perturbations_have_the_size_asked_for_and_leave_padding_alone(name: str, kind: Any) -> None:
    engine, room = run(name, kind, LOUD)[0], room_of(kind)
    last = engine.deltas[-1]
    found = {
        "smart": norms(last, room, "linf"),
        "alum": norms(last, room, "linf"),
        "smart_released": last.abs().amax(-1)[room.real_RL],
        "vat": norms(last, room, "l2"),
        "r3f": norms(last, room, "linf"),
        "fgm": norms(last, room, "l2"),
        "creat": norms(last, room, "l2"),
    }[name]
    size = {"smart": 0.05, "alum": 0.05, "smart_released": 1.0, "vat": 0.1, "r3f": 0.1, "fgm": 1.0, "creat": 0.2}[name]
    slack = {"smart_released": 0.2, "r3f": 0.1}.get(name, 1e-3)
    assert found.max().item() == pytest.approx(size, rel=slack)
    assert all(delta[~room.real_RL].count_nonzero() == 0 for delta in engine.deltas)


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_state_comes_back_bit_for_bit_and_goes_on_alike(name: str) -> None:
    one, two = METHODS[name](LOUD), METHODS[name](LOUD)
    engine = Watched(module_for(name, "mlm", dropout=0.1).train())
    for step in range(2):
        for replay in range(one.replays):
            one.backward(engine, tiny_batch(seed=step), At(0, replay))
        engine.step()
        one.after_step(engine)
    state = {key: value.clone() for key, value in one.state_dict().items()}
    two.load_state_dict(state)
    assert two.state_dict().keys() == state.keys()
    assert all(torch.equal(two.state_dict()[key], value) for key, value in state.items())
    found = []
    for method in (one, two):
        torch.manual_seed(5)
        found.append(method.backward(engine, tiny_batch(seed=9), At(0, 0)))
    assert all(torch.equal(found[1][key], value) for key, value in found[0].items())


@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_state_of_the_methods_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="state"):
        METHODS[name](LOUD).load_state_dict({"step": torch.tensor(3)})


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name](LOUD).uses_adversary])
def test_a_method_with_an_adversary_asks_for_one(name: str) -> None:
    with pytest.raises(RequestError, match=r"no adversary .* ASAConfig"):
        METHODS[name](LOUD).backward(Watched(tiny_module()), tiny_batch(), At(0, 0))


@pytest.mark.parametrize("change", ["cut", "grown"])
@pytest.mark.parametrize("name", ["random_mask", "asa_sparse"])
def test_layers_are_counted_in_the_model_and_not_in_its_config(name: str, change: str) -> None:
    model = tiny_bert()
    blocks: Any = model.base_model.get_submodule("encoder.layer")
    if change == "cut":
        del blocks[1:]
    else:
        blocks.append(copy.deepcopy(blocks[0]))
    options = replace(LOUD, random_mask=RandomMaskConfig(share=0.5))
    engine = Watched(TaskModel(model, "mlm", ASAConfig() if METHODS[name](options).uses_adversary else None))
    terms = METHODS[name](options).backward(engine, tiny_batch(), At(0, 0))
    assert terms["masked_share"].shape == (len(blocks),)


@pytest.mark.parametrize("name", METHODS)
def test_an_examples_part_does_not_depend_on_the_rest_of_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that holds the same rows twice has the gradients of the rows once."""
    for draw in ("uniform", "gaussian"):
        monkeypatch.setattr(f"asa.perturb.{draw}", lambda room, size: _same(room) * size)
    once = tiny_batch("classification")
    inputs = {key: torch.cat([value, value]) for key, value in once.inputs.items()}
    labels = torch.cat([once.labels, once.labels])
    twice = replace(once, inputs=inputs, labels=labels, total_rows=2 * once.total_rows, total_labels=len(labels))
    options = replace(LOUD, random_mask=WEAK.random_mask)
    found = []
    for batch in (once, twice):
        engine = Watched(module_for(name, "classification"))
        METHODS[name](options).backward(engine, batch, At(0, 0))
        found.append(gradients(engine.module))
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-3, atol=1e-5, msg=f"{key} of {name}")


def _same(room: Room) -> Tensor:
    drawn_LD = torch.rand(room.real_RL.shape[1], room.width, generator=torch.Generator().manual_seed(5)) - 0.5
    return drawn_LD * room.real_RL.unsqueeze(-1)


@pytest.mark.parametrize("name", ["smart", "alum", "vat", "r3f", "creat", "asa_sparse", "asa_freelb"])
def test_noise_is_drawn_before_the_random_state_is_put_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the masks of the next micro-batch would be made of the same random numbers."""
    creat = replace(LOUD.creat, dropout="shared")
    shared = replace(LOUD, creat=creat, r3f=R3FConfig(dropout="shared"), asa=ASAConfig(mask="gumbel", dropout="shared"))
    adversary = shared.asa if METHODS[name](shared).uses_adversary else None
    engine, outside = Watched(tiny_module("mlm", adversary)), []

    def noted(draw: Any) -> Any:
        return lambda *args: outside.append(engine._dropout_state is None) or draw(*args)

    for target in ("asa.perturb.uniform", "asa.perturb.gaussian", "asa.adversary.Adversary.noise"):
        monkeypatch.setattr(target, noted(pkgutil.resolve_name(target)))
    METHODS[name](shared).backward(engine, tiny_batch(), At(0, 0))
    assert outside
    assert all(outside)


class Asked:
    """A configuration that notes which groups are read."""

    def __init__(self) -> None:
        self.groups: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.groups.append(name)
        return getattr(MethodsConfig(), name)


@pytest.mark.parametrize("name", [name for name in METHODS if ":" not in name])
def test_the_groups_said_to_be_read_are_those_that_building_it_reads(name: str) -> None:
    asked = Asked()
    METHODS[name](cast(Any, asked))
    assert groups_read(name) == tuple(asked.groups)


def test_flags_of_other_methods_are_told_each_once() -> None:
    argv = ["--asa.tau=0.2", "--smart.ascents", "2", "--smart.ascents=1", "--freelb", "x.yaml", "--lr", "pgd.steps"]
    assert flags_unread(argv, ["asa"]) == ["--smart.ascents", "--freelb"]
    assert flags_unread(argv, ["vanilla", "asa_freelb"]) == ["--smart.ascents"]
    assert flags_unread(argv, ["asa", "mine:build"]) == flags_unread(argv, []) == flags_unread(argv, None) == []


def test_a_method_from_outside_may_read_every_group() -> None:
    assert set(groups_read("mine:build")) == vars(MethodsConfig()).keys()
