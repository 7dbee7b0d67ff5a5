"""The slow twin is an oracle: without a line of asa/, its loss and gradients are those of our ASA as released."""

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from asa.adversary import ASAConfig
from asa.methods import METHODS, At, MethodsConfig
from benchmarks.twin import Twin
from tests.asa.conftest import gradients, tiny_batch, tiny_bert, tiny_engine, tiny_module

TAU = 0.3


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["mlm", "classification"])
def test_loss_and_gradients_are_those_of_our_asa_as_released(kind: Any, attention: str) -> None:
    released = ASAConfig.released(tau=TAU)
    # In fp64: the twin's 0 + soft - soft is not exactly 0, and -1e4 makes much of that.
    module = tiny_module(kind, released, attention=attention).double()
    assert module.adversary is not None
    twin: Any = Twin(tiny_bert(kind, attention="eager"), TAU).double()  # type: ignore[arg-type]
    for number, adversary in enumerate(module.adversary):
        for name in ("query", "key"):
            # Wide, so that scores are of both signs and far from zero.
            getattr(adversary, name).weight.data.mul_(20)
            getattr(twin, name)[number].load_state_dict(getattr(adversary, name).state_dict())
    batch = tiny_batch(kind)

    loss = twin(batch)
    loss.backward()
    loss = loss.detach()
    ours = METHODS["asa"](MethodsConfig(asa=released)).backward(tiny_engine(module), batch, At(0, 0))
    assert ours["masked_share"].min() > 0
    assert ours["masked_share"].max() < 1
    assert float(loss) == pytest.approx(float(ours["loss"]), rel=1e-6)
    found = {_ours(name): p.grad for name, p in twin.named_parameters() if p.grad is not None}
    expected = gradients(module)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # A key's bias moves nothing: its gradient is rounding alone.
        near = 1e-6 * float(gradient.abs().max()) + 1e-12
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=near, msg=name)


def test_under_autocast_no_pass_has_scores_of_fp32() -> None:
    """What a map or a mask in fp32 would make of them."""
    kinds: list[torch.dtype] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.softmax and args[0].dim() == 4:
                kinds.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    twin = Twin(tiny_bert("mlm", attention="eager"), TAU)  # type: ignore[arg-type]
    with Watch(), torch.autocast("cpu", torch.bfloat16):
        twin(tiny_batch("mlm"))
    assert kinds == [torch.bfloat16] * 4


def _ours(name: str) -> str:
    part, number, *rest = name.split(".")
    return name if part == "model" else ".".join(["adversary", number, part, *rest])
