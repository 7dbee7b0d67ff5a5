"""The attack on losses whose maximum in the ball is known, then the command on models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asa import record
from asa.config import from_dict
from asa.errors import RequestError
from asa.perturb import Room
from finetune import robustness as command
from finetune.attack import Look, Worst, attack
from finetune.evaluation_config import RobustnessConfig
from finetune.radii import RADII
from finetune.robustness import EXAMPLES, robustness
from finetune.saved import Saved, find
from finetune.subject import attacked, prepare
from tests.finetune.conftest import CLASSES, small_task
from tests.finetune.test_score import saved, waiting

E, L, D = 3, 4, 5  # examples, tokens, width
ROOM = Room(torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool), E, D)
RADIUS = st.floats(0.01, 3)


def linear(slope_ELD: Tensor) -> Look:
    """Loss 1 + <slope, delta>, right while it is below 2."""

    def look(delta_ELD: Tensor) -> tuple[Tensor, Tensor]:
        loss_E = 1 + (slope_ELD * delta_ELD).sum((1, 2))
        return loss_E, loss_E < 2

    return look


def slopes(seed: int) -> Tensor:
    return torch.randn(E, L, D, generator=torch.Generator().manual_seed(seed))


def climbed(look: Look, radius: float, steps: int = 40, starts: int = 1) -> Worst:
    return attack(look, ROOM, torch.full((E,), radius), steps, 0.2, starts, (0, 0))


@settings(max_examples=25)
@given(st.integers(0, 1000), RADIUS)
def test_a_linear_loss_rises_by_radius_times_slope_of_the_tokens_alone(seed: int, radius: float) -> None:
    slope_ELD = slopes(seed)
    worst = climbed(linear(slope_ELD), radius)
    real_ELD = slope_ELD * ROOM.real_RL.unsqueeze(-1)
    torch.testing.assert_close(worst.increase_E, radius * real_ELD.norm(dim=(1, 2)), rtol=1e-4, atol=1e-5)
    assert (worst.resisted_E == (worst.reached_SE.amax(0) < 2)).all()


@settings(max_examples=25)
@given(st.integers(0, 1000), RADIUS, st.floats(1, 4))
def test_the_increase_is_monotone_in_the_radius(seed: int, radius: float, factor: float) -> None:
    look = linear(slopes(seed))
    assert (climbed(look, radius * factor).increase_E >= climbed(look, radius).increase_E - 1e-5).all()


def test_each_example_has_its_own_ball_and_a_maximum_inside_it_is_found() -> None:
    peak_ELD = slopes(1) * ROOM.real_RL.unsqueeze(-1)
    peak_ELD = peak_ELD / peak_ELD.norm(dim=(1, 2), keepdim=True)

    def look(delta_ELD: Tensor) -> tuple[Tensor, Tensor]:
        return 5 - (delta_ELD - peak_ELD).square().sum((1, 2)), torch.ones(E, dtype=torch.bool)

    radius_E = torch.tensor([2.0, 1.0, 0.25])
    worst = attack(look, ROOM, radius_E, 400, 0.01, 1, (0,))
    # The loss at distance d of the peak is 5 - d^2; the peak lies at distance 1 of the clean example.
    expected_E = 1 - (1 - radius_E).clamp_min(0).square()
    torch.testing.assert_close(worst.increase_E, expected_E, rtol=0, atol=2e-3)


def test_random_starts_reach_what_the_clean_start_cannot_and_nothing_is_ever_lost() -> None:
    def valley(delta_ELD: Tensor) -> tuple[Tensor, Tensor]:
        return delta_ELD.square().sum((1, 2)), torch.ones(E, dtype=torch.bool)

    def hill(delta_ELD: Tensor) -> tuple[Tensor, Tensor]:
        return -delta_ELD.square().sum((1, 2)), torch.ones(E, dtype=torch.bool)

    assert climbed(valley, 0.5, starts=1).increase_E.tolist() == [0, 0, 0]  # the gradient at the bottom is zero
    torch.testing.assert_close(climbed(valley, 0.5, starts=2).increase_E, torch.full((E,), 0.25))
    assert climbed(hill, 0.5, starts=3).increase_E.tolist() == [0, 0, 0]


def test_what_a_random_start_reaches_is_its_own_and_not_the_clean_examples() -> None:
    """By how much starts differ the report tells whether the ascents find one maximum."""

    def hill(delta_ELD: Tensor) -> tuple[Tensor, Tensor]:
        return -delta_ELD.square().sum((1, 2)), torch.ones(E, dtype=torch.bool)

    reached_SE = climbed(hill, 0.5, steps=0, starts=2).reached_SE
    assert reached_SE[0].tolist() == [0, 0, 0]
    assert (reached_SE[1] < 0).all()


def test_an_example_resists_that_is_right_at_every_point_and_not_at_the_last_alone() -> None:
    """Each example is wrong at another point: the clean one, in the middle of the way, none."""
    wrong = iter([[0], [], [1], [], []])

    def look(delta_ELD: Tensor) -> tuple[Tensor, Tensor]:
        right_E = torch.ones(E, dtype=torch.bool)
        right_E[next(wrong)] = False
        return linear(slopes(3))(delta_ELD)[0], right_E

    assert climbed(look, 1.0, steps=3).resisted_E.tolist() == [False, False, True]


def test_the_statistics_over_examples() -> None:
    """Increases of 1, 2 and 6; what a second start reached is 1, 1 and 3 below the first's."""
    reached_SE = torch.tensor([[2.0, 3.0, 7.0], [1.0, 2.0, 4.0]])
    found = command._summary(Worst(torch.ones(3), reached_SE, torch.tensor([True, True, False])), np.array([1, 2, 4]))
    assert (found["median"], found["mean"], found["max"], found["n"]) == (2, 3, 6, 3)
    assert found["sd"] == pytest.approx(7**0.5)  # of a sample
    assert (found["radius_median"], found["clean_loss_median"], found["start_spread"]) == (2, 1, 1)
    assert found["resisted"] == pytest.approx(2 / 3)


def test_the_same_seed_gives_the_same_points_and_padding_is_never_touched() -> None:
    seen: list[Tensor] = []

    def look(delta_ELD: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(delta_ELD.detach().clone())
        return linear(slopes(2))(delta_ELD.sin())

    first, again = climbed(look, 1.0, steps=5, starts=3), climbed(look, 1.0, steps=5, starts=3)
    torch.testing.assert_close(first.reached_SE, again.reached_SE, rtol=0, atol=0)
    for delta_ELD in seen:
        assert delta_ELD[~ROOM.real_RL].abs().max() == 0
        assert (delta_ELD.norm(dim=(1, 2)) <= 1.00001).all()
    other = attack(look, ROOM, torch.ones(E), 5, 0.2, 3, (1, 0))
    assert not torch.equal(other.reached_SE[1:], first.reached_SE[1:])


def test_the_norm_of_a_choice_goes_over_all_its_answers() -> None:
    room = Room(torch.ones(4, L, dtype=torch.bool), 2, D)  # 2 examples of 2 answers
    slope_RLD = torch.randn(4, L, D, generator=torch.Generator().manual_seed(3))

    def look(delta_RLD: Tensor) -> tuple[Tensor, Tensor]:
        loss_E = (slope_RLD * delta_RLD).reshape(2, -1).sum(1)
        return loss_E, loss_E < 1

    worst = attack(look, room, torch.tensor([1.0, 2.0]), 40, 0.2, 1, (0,))
    expected_E = torch.tensor([1.0, 2.0]) * slope_RLD.reshape(2, -1).norm(dim=1)
    torch.testing.assert_close(worst.increase_E, expected_E, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [0, 1])
def test_resisting_is_said_of_every_point(steps: int) -> None:
    look = linear(torch.ones(E, L, D) * 10)
    assert climbed(look, 1.0, steps=steps).resisted_E.tolist() == [steps == 0] * E


@pytest.fixture
def asked(model_folder: Path, task_folder: Path, tmp_path: Path) -> dict[str, Any]:
    """Two models with random heads whose classes have not even the same numbers."""
    return {
        "models": {
            "one": saved(tmp_path / "one", model_folder, CLASSES, seed=1),
            "two": saved(tmp_path / "two", model_folder, CLASSES[::-1], seed=2),
        },
        "reference": "one",
        "task": {"folder": task_folder},
        "out": tmp_path / "out",
        "split": "train",
        "length": 16,
        "radius": 0.06,
        "radii": 3,
        "steps": 6,
        "step_size": 0.3,
        "starts": 2,
    }


def examples(out: Path, model: str) -> dict[str, np.ndarray]:
    with np.load(out / "colours" / "one" / model / EXAMPLES) as file:
        return dict(file)


def test_the_command_records_models_on_the_rows_that_all_get_right(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    robustness(RobustnessConfig(**asked))
    start, end = record.read(asked["out"] / "colours" / "one" / "two" / record.NAME)
    told = {name: start[name] for name in ("stage", "task", "model", "reference")}
    assert told == {"stage": "robustness", "task": "colours", "model": "two", "reference": "one"}
    one, two = (examples(asked["out"], name) for name in ("one", "two"))
    assert end["n"] == len(two["ids"]) > 1
    np.testing.assert_array_equal(one["ids"], two["ids"])
    np.testing.assert_array_equal(one["radius"], two["radius"])
    np.testing.assert_array_equal(np.isin(one["radius"].round(9), [0.02, 0.04, 0.06]), True)
    assert one["resisted"].mean() > 0.5  # the radius was chosen so; the random start is another now
    for found in (one, two):
        assert (found["increase"] > 0).all()
        np.testing.assert_array_equal(found["increase"], found["reached"].max(0) - found["clean"])
        assert (found["clean"] < np.log(3)).all()  # right among three classes
    assert end["median"] == pytest.approx(np.median(two["increase"]))
    assert end["q25"] <= end["median"] <= end["q75"]
    out = capsys.readouterr().out
    assert "all models are right on" in out
    assert "clean_loss" in out


def test_a_command_given_again_does_what_is_left_and_finds_the_same(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    robustness(RobustnessConfig(**asked))
    folder, before = asked["out"] / "colours" / "one", examples(asked["out"], "two")
    radii = (folder / RADII).read_bytes()
    path = folder / "two" / record.NAME
    path.write_text(path.read_text().splitlines()[0] + "\n")  # as a kill leaves it
    attacked, titles = command.attacked, list[str]()

    def noted(subject: Any, *rest: Any) -> Worst:
        titles.append(f"{subject.name}: {rest[-1]}")
        return attacked(subject, *rest)

    monkeypatch.setattr(command, "attacked", noted)
    robustness(RobustnessConfig(**asked))
    assert titles == ["two: attack"]
    assert (folder / RADII).read_bytes() == radii
    for name, values in examples(asked["out"], "two").items():
        np.testing.assert_array_equal(values, before[name])
    with pytest.raises(RequestError, match="another config"):
        robustness(RobustnessConfig(**{**asked, "steps": 7}))
    assert (folder / RADII).read_bytes() == radii  # refused before anything is searched
    np.save(no_zip := folder / "no zip.npy", np.arange(3))
    for damaged in (radii[:50], no_zip.read_bytes()):
        (folder / RADII).write_bytes(damaged)
        robustness(RobustnessConfig(**asked))
        with np.load(folder / RADII) as found:
            assert set(before["radius"]) < set(found["radius"])  # those of rows without a radius are 0


def test_two_commands_on_one_reference_take_turns(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting(lambda: robustness(RobustnessConfig(**asked)), asked["out"], "colours/one", monkeypatch):
        assert not (asked["out"] / "colours").exists()
    assert record.finished(asked["out"] / "colours" / "one" / "two" / record.NAME)


def test_radii_and_records_of_other_rows_are_not_taken_for_those_of_these(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere numbers are rounded otherwise, and a row near the border may be right or not."""
    robustness(RobustnessConfig(**asked))
    folder, prepared = asked["out"] / "colours" / "one", command.prepare
    radii = (folder / RADII).read_bytes()

    def fewer(*given: Any) -> Any:
        found = prepared(*given)
        return found._replace(right=found.right - {min(found.right)}) if found.name == "two" else found

    monkeypatch.setattr(command, "prepare", fewer)
    with pytest.raises(RequestError, match="another attacked_sha256"):
        robustness(RobustnessConfig(**asked))
    assert (folder / RADII).read_bytes() == radii
    before = len(examples(asked["out"], "two")["ids"])
    notes = folder / "two" / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(RequestError, match=r"notes\.txt in it is no part of a record of robustness"):
        robustness(RobustnessConfig(**asked, overwrite=True))
    notes.unlink()
    robustness(RobustnessConfig(**asked, overwrite=True))
    assert len(examples(asked["out"], "two")["ids"]) <= before


def test_the_last_of_several_tasks_is_checked_before_the_first_is_attacked(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [[small_task("classification")] * 2, [small_task("token")] * 2]
    monkeypatch.setattr(command, "tasks_of", lambda *_: tasks)
    with pytest.raises(RequestError, match="is of kind token"):
        robustness(RobustnessConfig(**asked))
    assert not asked["out"].exists()


def test_classes_without_names_in_common_are_mapped(asked: dict[str, Any], model_folder: Path, tmp_path: Path) -> None:
    model = find(saved(tmp_path / "map", model_folder, ["rouge", "vert", "bleu"]), "--models.one")
    config = RobustnessConfig(**{**asked, "map": {"rouge": "blue", "vert": "red", "bleu": "green"}})
    task = small_task("classification")
    one = prepare("one", model, task, config)
    labels = task.splits["train"].labels
    assert labels is not None
    # The task's red, green, blue are the model's vert, bleu, rouge.
    assert one.data.labels is not None
    assert [int(label) for label in one.data.labels] == [[1, 2, 0][int(label)] for label in labels]  # type: ignore[arg-type]


@pytest.mark.parametrize(("shorter", "cut"), [(8, True), (30, False)])
def test_models_that_cut_texts_at_other_lengths_are_told_of(
    asked: dict[str, Any], shorter: int, cut: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = {asked["models"]["one"]: 32, asked["models"]["two"]: shorter}

    def own(path: Path, flag: str) -> Saved:
        return find(path, flag)._replace(run={"config": {"length": lengths[path]}})

    monkeypatch.setattr(command, "find", own)
    robustness(RobustnessConfig(**{**asked, "length": None}))
    line = (
        f"note: texts may be cut at other lengths (32 for one, {shorter} for two); --length {shorter} cuts them alike"
    )
    assert (line in capsys.readouterr().out) == cut
    robustness(RobustnessConfig(**{**asked, "length": shorter, "out": asked["out"] / "alike"}))
    assert "note" not in capsys.readouterr().out


def test_summaries_are_plain_medians() -> None:
    worst = Worst(torch.tensor([0.0, 1.0]), torch.tensor([[1.0, 1.0], [2.0, 4.0]]), torch.ones(2, dtype=torch.bool))
    found = command._summary(worst, np.array([0.1, 0.3]))
    assert (found["clean_loss_median"], found["start_spread"], found["median"]) == (0.5, 2.0, 2.5)
    lone = worst._replace(reached_SE=worst.reached_SE[:1])
    assert command._summary(lone, np.array([0.1, 0.3]))["start_spread"] is None


def test_wrong_requests_of_the_command_are_one_line(asked: dict[str, Any], model_folder: Path, tmp_path: Path) -> None:
    four = saved(tmp_path / "four", model_folder, [*CLASSES, "white"])
    numbers = saved(tmp_path / "numbers", model_folder, ["score"])
    for changes, told in (
        ({"reference": "three"}, "reference = 'three', allowed: one, two"),
        ({"models": {"one": four, "radii.npz": four}}, r"a model is called radii\.npz, .* another name by --models"),
        ({"split": "dav"}, "split = 'dav', colours has train, dev, test"),
        ({"models": {"one": numbers}}, "is for kind regression, colours is classification"),
        ({"models": {"one": four}}, "class 'white' of"),
        ({"models": {"one": model_folder}}, "no head for a task; fine-tune it first, or set --models.one"),
    ):
        with pytest.raises(RequestError, match=told):
            robustness(RobustnessConfig(**{**asked, **changes}))
    with pytest.raises(RequestError, match=r"radii = 9+: .*, allowed: 1 <= radii <= 1000000, set --radii"):
        from_dict(RobustnessConfig, {**asked, "radii": 10**22 - 1})
    with pytest.raises(RequestError, match="one resists nowhere on colours; lower --radius"):
        robustness(RobustnessConfig(**{**asked, "radius": 1e4, "radii": 1, "steps": 30}))


def test_models_that_were_trained_on_the_attacked_rows_are_told(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "{} was trained on its {}"
    monkeypatch.setattr(command, "trained_on_note", lambda folder, run, task, splits: told.format(folder.name, *splits))
    monkeypatch.setattr(command, "_attack", lambda *_: None)
    robustness(RobustnessConfig(**asked))
    assert capsys.readouterr().out.splitlines() == [told.format(name, "train") for name in ("one", "two")]


def test_every_batch_of_an_attack_starts_at_points_of_its_own(
    asked: dict[str, Any], model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = find(saved(tmp_path / "choice", model_folder, ["score"], kind="choice"), "--models.choice")
    config, seeds = RobustnessConfig(**{**asked, "batch": 5}), list[tuple[int, ...]]()

    def noted(*given: Any) -> Worst:
        seeds.append(given[-1])
        return attack(*given)

    monkeypatch.setattr("finetune.subject.attack", noted)
    attacked(prepare("choice", model, small_task("choice"), config), np.arange(10), np.full(10, 0.1), config, "attack")
    assert len(set(seeds)) == 2


def test_answers_that_a_row_has_not_take_no_part(asked: dict[str, Any], model_folder: Path, tmp_path: Path) -> None:
    model = find(saved(tmp_path / "choice", model_folder, ["score"], kind="choice"), "--models.choice")
    config = RobustnessConfig(**{**asked, "batch": 5})
    with pytest.raises(RequestError, match=r"map\.a: .* is of kind choice, which has no classes; leave --map out"):
        prepare("choice", model, small_task("choice"), replace(config, map={"a": "b"}))
    one = prepare("choice", model, small_task("choice"), config)
    rows = np.arange(len(one.data))
    worst = attacked(one, rows, np.full(len(rows), 0.1), config, "attack")
    with torch.no_grad():
        batch = one.data.batch(rows)
        logits_EC = one.module(batch).logits
    for row, answers in enumerate(one.data.answers):
        wanted = -logits_EC[row, :answers].log_softmax(-1)[batch.labels[row]]
        torch.testing.assert_close(worst.clean_E[row], wanted, rtol=1e-4, atol=1e-5)
    assert (worst.increase_E > 0).all()
    assert {row for row in rows.tolist() if worst.resisted_E[row]} <= one.right
