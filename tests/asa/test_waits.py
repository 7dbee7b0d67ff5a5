"""What a step reads back from its device, for which the host would wait for a GPU: nothing before the update."""

import copy
import pickle
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertForSequenceClassification, BertModel

from asa.adversary import ASAConfig
from asa.batch import Batch, Kind
from asa.engine import PlainEngine
from asa.families import FAMILIES
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.subset import choose
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.rtd import ReplacedTokenModel, replace_tokens, sample
from tests.asa.conftest import CPU, KINDS, LENGTH, ROWS, batch_for, tiny_bert, tiny_engine, tiny_module
from tests.asa.encoders import EAGER_ONLY, PAIRS, tiny
from tests.asa.test_rtd import discriminator

# Operations whose result, or its size, the host needs; those by flags among them look for their places.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique", "_unique2", "unique_dim", "bincount")
READS += ("unique_consecutive", "repeat_interleave", "masked_scatter", "masked_scatter_")
BY_FLAGS = ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_")
OUT = ("tolist", "numpy", "cpu")  # ways out of a tensor that no operation shows on a CPU
PADDED, FULL = "padded", "full"


class Reads(TorchDispatchMode):
    """Notes where tensors are read."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __enter__(self) -> "Reads":
        self._patch = pytest.MonkeyPatch()
        for name in OUT:
            self._patch.setattr(Tensor, name, self._noting(name, getattr(Tensor, name)))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._patch.undo()
        super().__exit__(*error)

    def _noting(self, name: str, method: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.places.append(f"{name}: " + "".join(traceback.format_stack(limit=6)))
            return method(*args, **kwargs)

        return noted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_flags = name in BY_FLAGS and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or by_flags:
            self.places.append(f"{name}: " + "".join(traceback.format_stack(limit=6)))
        return func(*args, **kwargs or {})


def moved(name: str, kind: Kind, rows: str) -> Batch:
    batch = batch_for(name, kind)
    if rows == FULL:
        full = torch.ones_like(batch.inputs["attention_mask"])
        batch = replace(batch, inputs=batch.inputs | {"attention_mask": full})
    return batch.to(CPU)


@pytest.mark.parametrize("rows", [PADDED, FULL])
@pytest.mark.parametrize("kind", ["mlm", "classification", "token"])
@pytest.mark.parametrize("name", METHODS)
def test_a_step_reads_nothing_before_its_update_and_once_in_it(name: str, kind: Kind, rows: str) -> None:
    method = METHODS[name](MethodsConfig())
    engine = tiny_engine(tiny_module(kind, ASAConfig() if method.uses_adversary else None, dropout=0.1))
    batch = moved("bert", kind, rows)
    for _ in range(2):  # asa_sparse attacks in every other one
        with Reads() as passes:
            method.backward(engine, batch, At(0, 0))
        assert passes.places == []
        with Reads() as update:
            engine.step()
            method.after_step(engine)
        assert len(update.places) == 1
        assert "isfinite" in update.places[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_is_not_waited_for_before_the_update(name: str) -> None:
    """What torch itself calls a wait; the first two steps try the kernels and compile them."""
    method, cuda = METHODS[name](MethodsConfig()), torch.device("cuda")
    module = tiny_module("mlm", ASAConfig() if method.uses_adversary else None, dropout=0.1).to(cuda)
    engine, batch = PlainEngine(module, OptimConfig(), 4, cuda), batch_for("bert", "mlm").to(cuda)
    for step in range(4):
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            method.backward(engine, batch, At(0, 0))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        engine.step()
        method.after_step(engine)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_batch_goes_to_a_gpu_that_is_at_work_without_waiting_for_it() -> None:
    """Copies of 64 KiB and less never wait; asking the driver for memory may, so the first copy is not looked at."""
    cuda, ids_BL = torch.device("cuda"), torch.arange(64 * 256).view(64, 256)
    batch = Batch("classification", {"input_ids": ids_BL}, torch.zeros(64, dtype=torch.long), 64, 64)
    batch.to(cuda)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # clocks: about a second
    work = torch.cuda.Event()
    work.record()
    sent = batch.to(cuda)
    assert not work.query()
    assert sent.ids.cpu().equal(ids_BL)


HARMFUL: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0].item(),
    "truth": lambda x: bool((x > 0).all()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "rows by flags": lambda x: x[x > 0],
    "flags set": lambda x: x.clone().__setitem__(x > 0, torch.ones(2)),
    "unique": lambda x: x.unique(),
    "runs": lambda x: x.unique_consecutive(),
    "where": lambda x: torch.where(x > 0),
}


@pytest.mark.parametrize("which", HARMFUL)
def test_what_a_gpu_would_be_waited_for_is_noticed(which: str) -> None:
    with Reads() as reads:
        HARMFUL[which](torch.tensor([1.0, -1.0, 2.0]))
    assert reads.places


def test_replaced_token_detection_looks_at_no_mask_either() -> None:
    module = ReplacedTokenModel(discriminator("bert", attention="sdpa"), tiny("bert", attention="sdpa"), ASAConfig())
    engine, masked = tiny_engine(module), moved("bert", "mlm", PADDED)
    with Reads() as passes:
        out = engine.forward(masked)
        engine.backward(task_loss(out, masked))
        tokens = replace_tokens(masked, sample(out.log_probs, 0), 22)
        METHODS["asa"](MethodsConfig()).backward(engine, tokens, At(0, 0))
    assert passes.places == []
    assert tokens.padded is True


def test_some_rows_of_a_full_batch_are_full() -> None:
    for rows, known in ((PADDED, None), (FULL, False)):
        for kind in ("mlm", "classification"):
            assert choose(moved("bert", kind, rows), torch.tensor([2, 0])).batch.padded is known


@pytest.mark.parametrize("rows", [PADDED, FULL])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_does_as_docs_say(name: str, rows: str) -> None:
    engine = tiny_engine(TaskModel(tiny(name, "mlm", "eager" if name in EAGER_ONLY else "sdpa"), "mlm", ASAConfig()))
    batch = moved(name, "mlm", rows)
    with Reads() as passes:
        METHODS["asa"](MethodsConfig()).backward(engine, batch, At(0, 0))
    looks = [place for place in passes.places if "masking_utils" in place]
    assert bool(looks) == (rows == PADDED and name in ("mpnet", "modernbert"))
    own = [place for place in passes.places if "modeling_deberta.py" in place]  # sizes that it keeps in tensors
    assert len(passes.places) == len(looks) + len(own)


def masks_of(module: TaskModel, batch: Batch) -> tuple[list[Tensor | None], Tensor]:
    """What the attention modules are given for a mask, and the logits."""
    found: list[Tensor | None] = []
    module = copy.deepcopy(module)
    family = FAMILIES[module.model.config.model_type]

    def note(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(kwargs["attention_mask"] if "attention_mask" in kwargs else args[1])

    for block in module.model.base_model.get_submodule(family.layers).children():
        block.get_submodule(family.attention).register_forward_pre_hook(note, with_kwargs=True)
    return found, module(batch).logits


@pytest.mark.parametrize("rows", [PADDED, FULL])
@pytest.mark.parametrize(("name", "attention"), PAIRS)
def test_masks_are_those_that_transformers_makes(name: str, attention: str, rows: str) -> None:
    module = TaskModel(tiny(name, "mlm", attention), "mlm")
    batch = moved(name, "mlm", rows)
    (ours, logits), (theirs, plain) = (masks_of(module, one) for one in (batch, replace(batch, looked=None)))
    assert torch.equal(logits, plain)
    for mine, its in zip(ours, theirs, strict=True):
        assert (mine is None) == (its is None)
        if mine is not None and its is not None:
            assert mine.dtype == its.dtype
            assert torch.equal(mine, its)
            # Of ModernBERT's windows all rows may share one.
            assert mine.stride() == its.stride() or rows == FULL


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_seen_of_a_mask_holds_for_that_mask_alone(kind: Kind) -> None:
    padded = moved("bert", kind, PADDED)
    full = moved("bert", kind, FULL)
    assert (padded.padded, full.padded) == (True, False)
    assert (padded.twice().padded, full.twice().padded) == (True, False)
    assert full.to(CPU).padded is False
    for copied in (copy.deepcopy(full), pickle.loads(pickle.dumps(full))):
        assert copied.padded is None
    other = replace(full, inputs=full.inputs | {"attention_mask": padded.inputs["attention_mask"]})
    assert other.padded is None
    full.inputs["attention_mask"].data[0, ..., -1] = 0  # which torch does not count
    assert full.to(CPU).padded is True
    full.inputs["attention_mask"][0, ..., -2] = 0
    assert full.padded is None
    assert full.to(CPU).padded is True


def test_masks_of_another_shape_than_the_tokens_are_left_to_the_model() -> None:
    batch = moved("bert", "classification", FULL)
    for mask in (torch.ones(ROWS, LENGTH - 2), torch.ones(1, LENGTH), torch.ones(ROWS, 1, LENGTH, LENGTH)):
        assert replace(batch, inputs=batch.inputs | {"attention_mask": mask}).to(CPU).padded is None


def test_masks_that_torch_does_not_watch_are_not_relied_on() -> None:
    with torch.inference_mode():
        batch = moved("bert", "classification", FULL)
    assert batch.padded is None
    assert replace(batch, inputs={"input_ids": batch.inputs["input_ids"]}).to(CPU).padded is None


class Reading(BertForSequenceClassification):
    """A model of one's own that makes another mask of the one it is given."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        assert attention_mask is not None
        fewer = attention_mask.clone()
        fewer[:, -1] = 0
        return super().forward(input_ids=input_ids, attention_mask=fewer, **kwargs)


def watched(model: Any) -> None:
    """A hook that reads the mask."""

    def note(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert kwargs["attention_mask"].shape == (ROWS, LENGTH)

    model.base_model.register_forward_pre_hook(note, with_kwargs=True)


def own_class() -> Any:
    return Reading(tiny_bert("classification").config)  # type: ignore[arg-type]


def own_hook() -> Any:
    model = tiny_bert("classification")
    watched(model)
    return model


def hide(mask: Tensor) -> Tensor:
    hidden = mask.clone()
    hidden[:, -4:] = 0
    return hidden


def hook_on_model(model: Any) -> None:
    model.register_forward_pre_hook(
        lambda part, args, kwargs: (args, kwargs | {"attention_mask": hide(kwargs["attention_mask"])}), with_kwargs=True
    )


def hook_on_base(model: Any) -> None:
    hook_on_model(model.base_model)


def forward_of_base(model: Any) -> None:
    base, theirs = model.base_model, model.base_model.forward
    base.forward = lambda *args, **kwargs: theirs(*args, **kwargs | {"attention_mask": hide(kwargs["attention_mask"])})


def forward_of_model(model: Any) -> None:
    theirs = model.forward
    model.forward = lambda *args, **kwargs: theirs(*args, **kwargs | {"attention_mask": hide(kwargs["attention_mask"])})


@pytest.mark.parametrize("change", [hook_on_model, hook_on_base, forward_of_base, forward_of_model])
@pytest.mark.parametrize("rows", [PADDED, FULL])
def test_what_is_added_later_gets_the_mask_and_may_give_another(change: Callable[[Any], None], rows: str) -> None:
    model: Any = tiny_bert("classification").eval()
    module, batch = TaskModel(model, "classification"), moved("bert", "classification", rows)
    before = module(batch).logits
    change(model)
    after = module(batch).logits
    torch.testing.assert_close(after, model(**batch.inputs).logits, rtol=0, atol=1e-6)
    assert not torch.allclose(before, after, atol=1e-3)


@pytest.mark.parametrize("make", [own_class, own_hook])
@pytest.mark.parametrize("rows", [PADDED, FULL])
def test_models_with_parts_of_ones_own_get_the_mask_itself(make: Callable[[], Any], rows: str) -> None:
    model = make().eval()
    batch = moved("bert", "classification", rows)
    wanted = model(**batch.inputs).logits
    assert torch.equal(TaskModel(model, "classification")(batch).logits, wanted)


def test_a_bare_base_model_keeps_its_mask_outside_our_passes() -> None:
    module = tiny_module("classification")
    base: Any = module.model.base_model
    assert isinstance(base, BertModel)
    batch = moved("bert", "classification", PADDED)
    states = base(**batch.inputs).last_hidden_state
    short = base(**{name: value[:, :-3] for name, value in batch.inputs.items()}).last_hidden_state
    torch.testing.assert_close(states[1, : LENGTH - 3], short[1])
