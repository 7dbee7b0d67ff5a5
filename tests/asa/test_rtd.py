"""Replaced-token detection: the samples, the labels, tied embeddings in every family, and whose gradient goes where."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from asa import rtd
from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch
from asa.errors import RequestError
from asa.families import FAMILIES
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.rtd import ORIGINAL, REPLACED, ReplacedTokenModel, replace_tokens, sample
from tests.asa.conftest import VOCAB, tiny_batch, tiny_engine
from tests.asa.encoders import tiny

# B rows, L length, M masked positions, V vocabulary


def discriminator(name: str, **changes: Any) -> PreTrainedModel:
    """A tiny discriminator of a family, in training mode without dropout."""
    shape = tiny(name, **changes).config
    shape.num_labels = 1
    torch.manual_seed(1)
    return rtd.discriminator_class(shape).from_config(shape).train()


def module(name: str, asa: ASAConfig | None = None, **generator: Any) -> ReplacedTokenModel:
    return ReplacedTokenModel(discriminator(name), tiny(name, **generator), asa)


def masked_batch() -> Batch:
    batch = tiny_batch("mlm")
    return replace(batch, inputs={name: batch.inputs[name] for name in ("input_ids", "attention_mask")})


def corrupted(batch: Batch) -> Batch:
    """The discriminator's batch for samples that hit the original at every second place."""
    sampled_M = torch.where(torch.arange(len(batch.labels)) % 2 == 0, batch.labels, 5)
    return replace_tokens(batch, sampled_M, int(batch.inputs["attention_mask"].sum()))


def test_samples_follow_the_distribution_and_the_seed() -> None:
    probs_V = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    log_probs_MV = probs_V.log().expand(40_000, -1)
    torch.manual_seed(0)
    drawn_M = sample(log_probs_MV, None)
    torch.manual_seed(0)
    assert torch.equal(drawn_M, sample(log_probs_MV, None))
    shares_V = drawn_M.bincount(minlength=6) / len(drawn_M)
    assert (shares_V - probs_V).abs().max() < 0.01
    assert (shares_V[probs_V == 0] == 0).all()


def test_padding_is_never_drawn() -> None:
    """RoBERTa's kind counts positions by it."""
    drawn_M = sample(torch.full((20_000, VOCAB), 1 / VOCAB).log(), pad=1)
    assert set(drawn_M.tolist()) == set(range(VOCAB)) - {1}


def test_rows_are_drawn_from_their_own_distributions() -> None:
    wanted_M = torch.randint(0, VOCAB, (50,))
    log_probs_MV = torch.full((50, VOCAB), -torch.inf).scatter(1, wanted_M[:, None], 0.0)
    assert torch.equal(sample(log_probs_MV, None), wanted_M)
    assert sample(log_probs_MV[:0], None).shape == (0,)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_is_drawn_an_id_too(value: float) -> None:
    log_probs_MV = torch.full((3, VOCAB), 1 / VOCAB).log()
    log_probs_MV[1, 2:] = value
    drawn_M = sample(log_probs_MV, None)
    assert ((drawn_M >= 0) & (drawn_M < VOCAB)).all()


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 5))
def test_every_real_token_is_labelled_and_only_misses_count_as_replaced(seed: int, rows: int) -> None:
    batch = tiny_batch("mlm", seed=seed, rows=rows)
    assert batch.positions is not None
    before = batch.inputs["input_ids"].clone()
    sampled_M = torch.randint(0, 8, batch.labels.shape, generator=torch.Generator().manual_seed(seed))
    tokens = replace_tokens(batch, sampled_M, 77)
    assert (tokens.kind, tokens.total_labels, tokens.total_rows) == ("token", 77, batch.total_rows)
    assert torch.equal(batch.inputs["input_ids"], before)
    ids_N, labels_N = tokens.inputs["input_ids"].flatten(), tokens.labels.flatten()
    others_N = torch.ones_like(ids_N, dtype=torch.bool)
    others_N[batch.positions] = False
    assert torch.equal(ids_N[batch.positions], sampled_M)
    assert torch.equal(ids_N[others_N], before.flatten()[others_N])
    assert torch.equal(labels_N == IGNORE, batch.pad_BL.flatten())
    assert torch.equal(labels_N[batch.positions] == REPLACED, sampled_M != batch.labels)
    assert set(labels_N[others_N].tolist()) <= {ORIGINAL, IGNORE}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_two_classes_give_the_binary_cross_entropy_of_the_models_one_score(name: str) -> None:
    net, tokens = module(name), corrupted(masked_batch())
    score_BL = net.model(**tokens.inputs).logits.view(tokens.labels.shape)
    real_BL = tokens.labels != IGNORE
    expected = F.binary_cross_entropy_with_logits(score_BL[real_BL], tokens.labels[real_BL].float())
    assert task_loss(net(tokens), tokens).item() == pytest.approx(expected.item(), rel=1e-5)
    assert {ORIGINAL, REPLACED} <= set(tokens.labels.flatten().tolist())


@pytest.mark.parametrize("name", FAMILIES)
def test_embeddings_are_one_parameter_in_every_family(name: str) -> None:
    net = module(name)
    shared = {id(p) for p in net.model.parameters()} & {id(p) for p in net.generator.parameters()}
    words: Any = net.model.get_input_embeddings()
    head: Any = net.generator.get_output_embeddings()
    assert id(words.weight) in shared
    assert head.weight is words.weight
    names = [n for n, p in net.model.base_model.named_parameters() if id(p) in shared]
    positions = name not in ("modernbert", "deberta", "deberta-v2")  # theirs are relative, or turned into the scores
    assert any("position_embeddings" in n for n in names) == positions
    assert all("embeddings" in n and "LayerNorm" not in n for n in names)
    batch = masked_batch()
    assert net(batch).logits.shape == (len(batch.labels), VOCAB)


def test_a_smaller_generator_shares_the_embeddings_alone() -> None:
    net = module("electra", hidden_size=8, num_hidden_layers=1)
    shared = {id(p) for p in net.model.parameters()} & {id(p) for p in net.generator.parameters()}
    assert len(shared) == 3  # words, positions, types
    assert net(masked_batch()).logits.shape[1] == VOCAB


def test_another_familys_generator_shares_the_words_alone() -> None:
    net = ReplacedTokenModel(discriminator("bert"), tiny("electra", embedding_size=16, hidden_size=8))
    shared = {id(p) for p in net.model.parameters()} & {id(p) for p in net.generator.parameters()}
    assert len(shared) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"vocab_size": 41}, "41 ids, the model for 40.*--rtd"), ({"hidden_size": 8}, "8 wide, the model's 16.*--rtd")],
)
def test_a_generator_of_another_vocabulary_or_width_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ReplacedTokenModel(discriminator("bert"), tiny("bert", **changes))


def test_a_twin_is_the_discriminator_alone() -> None:
    """What SMART averages: the same two classes, and names that the trained module has."""
    net, tokens = module("electra").eval(), corrupted(masked_batch())
    twin = net.twin()
    twin.load_state_dict({name: net.state_dict()[name] for name in twin.state_dict()})
    assert torch.equal(twin(tokens).logits, net(tokens).logits)
    assert not hasattr(twin, "generator")


def test_a_twin_draws_no_random_number() -> None:
    """SMART makes its teacher when a run is resumed, where the run without a stop has made it before."""
    net, before = module("electra"), torch.get_rng_state()
    net.twin()
    assert torch.equal(torch.get_rng_state(), before)


def touched(net: ReplacedTokenModel) -> dict[str, bool]:
    """Parts that have a gradient: the discriminator's and the generator's own parameters, shared ones, adversaries."""
    ours, theirs = ({id(p) for p in part.parameters()} for part in (net.model, net.generator))
    found = {id(p) for p in net.parameters() if p.grad is not None and p.grad.abs().max() > 0}
    adversary = {id(p) for p in net.adversary.parameters()} if net.adversary is not None else set()
    parts = {
        "discriminator": ours - theirs,
        "generator": theirs - ours,
        "shared": ours & theirs,
        "adversary": adversary,
    }
    return {name: bool(ids & found) for name, ids in parts.items()}


@pytest.mark.parametrize("name", ["bert", "electra", "deberta-v2"])
def test_each_loss_reaches_its_own_model_and_the_embeddings(name: str) -> None:
    batch = masked_batch()
    engine: Any = tiny_engine(module(name, ASAConfig()))
    engine.backward(task_loss(engine.forward(batch), batch))
    assert touched(engine.module) == {"discriminator": False, "generator": True, "shared": True, "adversary": False}
    engine.module.zero_grad(set_to_none=True)
    METHODS["asa"](MethodsConfig()).backward(engine, corrupted(batch), At(0, 0))
    assert touched(engine.module) == {"discriminator": True, "generator": False, "shared": True, "adversary": True}


def test_the_asa_term_is_the_divergence_over_every_real_token() -> None:
    """Clean and attacked rows are the same corrupted ids; the term is the mean over labelled tokens of half the
    symmetric KL."""
    seen: list[Tensor] = []
    engine: Any = tiny_engine(module("bert", ASAConfig()))
    tokens = corrupted(masked_batch())
    outputs: list[Tensor] = []

    def forward(batch: Batch, *perturb: Any) -> Any:
        seen.extend(batch.inputs["input_ids"].chunk(2))
        out = engine.module(batch, *perturb)
        outputs.extend(out.logits.detach()[batch.labels != IGNORE].softmax(-1).chunk(2))
        return out

    engine.forward = forward
    terms = METHODS["asa"](MethodsConfig()).backward(engine, tokens, At(0, 0))
    assert len(seen) == 2
    assert all(torch.equal(ids_BL, tokens.inputs["input_ids"]) for ids_BL in seen)
    clean_NC, attacked_NC = outputs
    expected = ((clean_NC - attacked_NC) * (clean_NC / attacked_NC).log()).sum(-1).mean() / 2
    assert terms["asa"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert expected > 0


def test_a_generator_and_a_discriminator_learn_from_a_few_steps() -> None:
    """On one batch both losses fall, and the tied embeddings stay one."""
    torch.manual_seed(0)
    batch = masked_batch()
    tokens = corrupted(batch)
    engine: Any = tiny_engine(module("bert"))
    losses: list[tuple[float, float]] = []
    for _ in range(10):
        pair = [task_loss(engine.forward(part), part) for part in (batch, tokens)]
        losses.append((pair[0].item(), pair[1].item()))
        for loss in pair:
            engine.backward(loss)
        engine.step()
    assert losses[-1][0] < losses[0][0]
    assert losses[-1][1] < losses[0][1]
    assert engine.module.generator.get_input_embeddings() is engine.module.model.get_input_embeddings()
