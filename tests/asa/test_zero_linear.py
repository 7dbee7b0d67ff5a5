"""ZeRO 3 computes what the plain engine does, no gradient beside, and leaves torch as it was."""

from typing import Any

import pytest
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from asa.engine import Engine
from asa.hf import checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.zero import DeepSpeedEngine
from tests.asa.conftest import CPU, tiny_batch, tiny_engine, tiny_module

pytestmark = pytest.mark.usefixtures("one_process")


def flops(engine: Engine, method: str) -> int:
    with FlopCounterMode(display=False) as counter:
        METHODS[method](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    return counter.get_total_flops()


@pytest.mark.parametrize("frozen", [False, True])
def test_an_ascent_on_zero_3_computes_no_gradient_of_a_weight(frozen: bool) -> None:
    def module() -> TaskModel:
        made = tiny_module()
        for name, p in made.named_parameters():
            p.requires_grad_(not (frozen and ".layer.0." in name))
        return made

    torchs = F.linear
    expected = {name: flops(tiny_engine(module()), name) for name in ("vanilla", "pgd", "smart", "freelb")}
    engine = DeepSpeedEngine(module(), OptimConfig(), 10, CPU, zero=3, precision="fp32", micro_batch=3)
    assert {name: flops(engine, name) for name in expected} == expected
    assert F.linear is torchs  # other engines of the process go by it
    engine.close()


def test_a_pass_that_is_made_again_in_a_backward_goes_by_the_layer_of_the_first() -> None:
    """Torch's own would hold each gathered weight until then; one beside the other is an error of torch's."""
    module, torchs, seen = tiny_module(), F.linear, list[Any]()
    checkpoint_activations(module.model)
    first: Any = module.get_submodule("model.bert.encoder.layer.0.attention.self.query")
    first.register_forward_pre_hook(lambda *_: seen.append(F.linear))
    engine = DeepSpeedEngine(module, OptimConfig(), 10, CPU, zero=3, precision="fp32", micro_batch=3)
    METHODS["pgd"](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    assert len(seen) == 2 * 3
    assert len({torchs, *seen}) == 2
    assert F.linear is torchs
    engine.close()
