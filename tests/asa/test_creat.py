"""CreAT as its authors' program computes it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from asa.methods import At
from asa.methods.ball import room
from asa.methods.creat import CreAT, CreATConfig
from asa.model import TaskModel
from asa.perturb import norms
from tests.asa.conftest import gradients, tiny_batch, tiny_module
from tests.asa.test_methods import Watched

LOUD = CreATConfig(start=0.05, radius=0.5, step_size=0.4)  # per entry: the noise of a row begins outside the ball

# R rows, L length, D width


def released_step(module: TaskModel, noise_RLD: Tensor, temperature: float, dropout_seed: int) -> Tensor:
    """The perturbation of one ascent, on what both programs take for the start."""
    batch, model = tiny_batch("classification"), module.model
    words_RLD = model.get_input_embeddings()(batch.inputs["input_ids"]).detach()
    rest = {name: value for name, value in batch.inputs.items() if name != "input_ids"}
    real_RL1 = rest["attention_mask"].unsqueeze(-1)
    torch.manual_seed(dropout_seed)
    clean = model(inputs_embeds=words_RLD, **rest, labels=batch.labels, output_hidden_states=True)
    delta_RLD = noise_RLD.clone().requires_grad_()
    found = model(inputs_embeds=words_RLD + delta_RLD, **rest, labels=batch.labels, output_hidden_states=True)
    states_RLD, fixed_RLD = found.hidden_states[-1] * real_RL1, clean.hidden_states[-1].detach() * real_RL1
    cosine = F.cosine_similarity(states_RLD, fixed_RLD, dim=-1).sum(-1).mean()
    (gradient_RLD,) = torch.autograd.grad(found.loss - temperature * cosine, delta_RLD)
    step_RLD = 0.4 * gradient_RLD / gradient_RLD.flatten(1).norm(dim=1)[:, None, None]
    moved_RLD = noise_RLD + step_RLD
    return moved_RLD * (0.5 / moved_RLD.flatten(1).norm(dim=1)).clamp_max(1)[:, None, None]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 10.0])
def test_the_perturbation_is_the_released_programs(temperature: float, dropout: float) -> None:
    """The sum over a sequence's tokens, which makes the cosine as loud as the task, and dropout of each pass's own."""
    engine = Watched(tiny_module("classification", dropout=dropout).train())
    options = replace(LOUD, start=1e-3, temperature=temperature)
    noise_RLD: list[Tensor] = []
    ours: Any = CreAT(options)
    torch.manual_seed(3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("asa.perturb.gaussian", lambda where, std: _noted(where, std, noise_RLD))
        ours.backward(engine, tiny_batch("classification"), At(0, 0))
    expected_RLD = released_step(engine.module, noise_RLD[0], temperature, dropout_seed=4)
    torch.testing.assert_close(engine.deltas[-1], expected_RLD, rtol=1e-3, atol=1e-5)


def _noted(where: Any, std: float, noise_RLD: list[Tensor]) -> Tensor:
    noise_RLD.append(torch.randn(*where.real_RL.shape, where.width) * std * where.real_RL.unsqueeze(-1))
    torch.manual_seed(4)  # the passes' dropout begins here
    return noise_RLD[0]


@pytest.mark.parametrize("ball", ["l2", "linf"])
def test_the_start_is_brought_into_the_ball(ball: Any) -> None:
    engine, batch = Watched(tiny_module()), tiny_batch()
    CreAT(replace(LOUD, start=0.5, ball=ball)).backward(engine, batch, At(0, 0))
    assert norms(engine.deltas[0], room(engine, batch), ball).max().item() == pytest.approx(0.5)


def test_a_cosine_without_a_gradient_is_refused() -> None:
    with pytest.raises(ValidationError, match="start 0 and dropout shared the cosine has no gradient; set start above"):
        CreATConfig(start=0.0, dropout="shared")
    for allowed in (CreATConfig(start=0.0), CreATConfig(start=0.0, dropout="shared", temperature=0.0)):
        engine = Watched(tiny_module("classification", dropout=0.2).train())
        CreAT(allowed).backward(engine, tiny_batch("classification"), At(0, 0))
        assert gradients(engine.module)
        assert engine.deltas[-1].norm() > 0
