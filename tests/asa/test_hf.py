"""Hugging Face folders: what is refused, what a vocabulary's hash sees, heads that a checkpoint lacks."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import normalizers, pre_tokenizers
from transformers import BertForMaskedLM, BertweetTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as hf_logging

from asa import hf
from asa.batch import Kind
from asa.errors import RequestError
from asa.rtd import load_discriminator
from asa.tokenizer import for_words, load_tokenizer, reader_sha256, vocab_sha256
from tests.asa.conftest import KINDS, tiny_bert, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    tiny_bert().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_hash_differs_for_other_words_other_order_and_other_special_tokens() -> None:
    tokenizers = [tiny_tokenizer(), tiny_tokenizer(("one", "two")), tiny_tokenizer(("two", "one", "three"))]
    tokenizers.append(tiny_tokenizer())
    tokenizers[-1].mask_token = "one"
    assert len({vocab_sha256(tokenizer) for tokenizer in tokenizers}) == 4


def test_the_hash_of_a_reader_differs_for_all_that_makes_other_rows(tokenizer: PreTrainedTokenizerFast) -> None:
    others = [copy.deepcopy(tokenizer) for _ in range(5)]
    others[0].truncation_side = "left"
    others[1].model_input_names = ["input_ids"]
    others[2].mask_token = "one"
    others[3].split_special_tokens = True
    others[4].backend_tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    hashes = {reader_sha256(one) for one in (tokenizer, *others)}
    assert len(hashes) == 6
    tokenizer("one two", truncation=True, max_length=4)
    assert reader_sha256(tokenizer) in hashes


def test_words_are_refused_for_a_tokenizer_that_does_not_know_them() -> None:
    with pytest.raises(RequestError, match=r"BertweetTokenizer cannot tell the words of its tokens; .* by --models"):
        for_words(BertweetTokenizer.__new__(BertweetTokenizer))


def test_the_hash_outlives_saving_and_loading(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    assert vocab_sha256(load_tokenizer(folder, "--model")) == vocab_sha256(tokenizer)


def test_a_complete_model_passes(folder: Path) -> None:
    hf.check_model(folder, "--model")


@pytest.mark.parametrize(
    ("file", "message"), [("config.json", "no config.json.*--start"), ("model.safetensors", "no weights.*--start")]
)
def test_an_incomplete_model_is_refused(folder: Path, file: str, message: str) -> None:
    (folder / file).unlink()
    with pytest.raises(RequestError, match=message):
        hf.check_model(folder, "--start")


@pytest.mark.parametrize("name", ["bert-base-uncased", "google-bert/bert-base-uncased"])
def test_a_name_of_the_hub_is_told_how_it_is_fetched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mend = f"no folder {name}; .*: hf download {name} --local-dir models/bert-base-uncased$"
    with pytest.raises(RequestError, match=mend):
        hf.check_model(Path(name), "--start")
    for place in (tmp_path / "a", Path("deep/er/a")):
        with pytest.raises(RequestError, match=r"by --start$"):
            hf.check_model(place, "--start")


def test_an_unsupported_family_is_refused_by_its_name(folder: Path) -> None:
    shape = json.loads((folder / "config.json").read_text()) | {"model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(shape))
    with pytest.raises(RequestError, match=r"'gpt2' is not supported; give one of .*bert.* by --start"):
        hf.check_model(folder, "--start")


def test_a_folder_without_a_fast_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no tokenizer\.json.*--start"):
        load_tokenizer(tmp_path, "--start")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_under_old_names_are_put_in_and_one_that_is_not_there_is_named(kind: Kind, tmp_path: Path) -> None:
    model, other = tiny_bert(kind), tiny_bert(kind, seed=1)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    for file in files:
        state = {name.replace("Norm.weight", "Norm.gamma"): value for name, value in load_file(file).items()}
        save_file(state, file, metadata={"format": "pt"})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("Norm.weight", "Norm.gamma"))
    drawn = torch.get_rng_state()
    hf.load_renamed(other, tmp_path, "--start")
    assert torch.equal(torch.get_rng_state(), drawn)
    state = model.state_dict()
    assert [name for name, value in other.state_dict().items() if not torch.equal(value, state[name])] == []
    wide = {name: torch.zeros(1, 1, 1) if "gamma" in name else value for name, value in load_file(files[0]).items()}
    fewer = load_file(files[0])
    fewer.pop(min(fewer))
    for lacking in (fewer, {"LayerNorm.gamma": torch.zeros(1)}):
        save_file(lacking, files[0], metadata={"format": "pt"})
        with pytest.raises(RequestError, match=r"lacks bert.* of Bert.*; give another by --start"):
            hf.load_renamed(other, tmp_path, "--start")
    if any("gamma" in name for name in wide):
        save_file(wide, files[0], metadata={"format": "pt"})
        with pytest.raises(RequestError, match=r"cannot be loaded .*size mismatch.*give a complete folder by --start"):
            hf.load_renamed(other, tmp_path, "--start")


def test_a_damaged_tokenizer_is_one_line_with_the_flag(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(RequestError, match=r"damaged tokenizer .*--start") as caught:
        load_tokenizer(folder, "--start")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sequence", [False, True])
def test_words_are_read_with_the_space_before_them_by_a_byte_level_tokenizer_alone(sequence: bool) -> None:
    plain, spaced = tiny_tokenizer(), tiny_tokenizer()
    step = pre_tokenizers.ByteLevel(add_prefix_space=False)
    steps = pre_tokenizers.Sequence([pre_tokenizers.Digits(), step]) if sequence else step
    spaced.backend_tokenizer.pre_tokenizer = steps  # type: ignore[assignment]  # a setter, unknown to the stub
    assert for_words(plain) is plain
    cut = [one.backend_tokenizer.pre_tokenizer.pre_tokenize_str("one")[0][0] for one in (spaced, for_words(spaced))]  # type: ignore[attr-defined, union-attr]
    assert cut == ["one", "Ġone"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"length": 11}, "reads at most 10 tokens, rows have 11; .*--start"),
        ({"vocab": 41}, "has embeddings for 40 ids, the tokenizer 41; .*--start"),
    ],
)
def test_a_model_too_small_for_the_rows_is_refused(ask: dict[str, int], message: str, folder: Path) -> None:
    hf.check_model(folder, "--start", length=10, vocab=40)
    with pytest.raises(RequestError, match=message):
        hf.check_model(folder, "--start", **ask)


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused_and_one_with_fewer_is_not(
    folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    most = max(tokenizer.get_vocab().values())
    assert vocab_sha256(hf.check_reader(folder, "--start")) == vocab_sha256(tokenizer)
    unpadded = copy.deepcopy(tokenizer)
    unpadded.pad_token = None
    unpadded.save_pretrained(folder)
    with pytest.raises(RequestError, match=r"tokenizer without a padding token; name one as pad_token .*--start"):
        hf.check_reader(folder, "--start")
    tokenizer.save_pretrained(folder)
    small: Any = tiny_bert()
    small.resize_token_embeddings(most)
    small.save_pretrained(folder)
    with pytest.raises(RequestError, match=rf"embeddings for {most} ids, the tokenizer {most + 1}; set --start"):
        hf.check_reader(folder, "--start")


def test_damaged_weights_are_refused_by_their_name(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"none")
    with pytest.raises(RequestError, match=r"model\.safetensors is damaged \(.*\); give .* by --start"):
        hf.check_model(folder, "--start")


def pickled(folder: Path, **how: Any) -> Path:
    """The folder's weights as older models have them, in the place of model.safetensors."""
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save(tiny_bert().state_dict(), file, **how)
    return file


@pytest.mark.parametrize("zipped", [True, False])
def test_whole_pickled_weights_pass_and_load(zipped: bool, folder: Path) -> None:
    pickled(folder, _use_new_zipfile_serialization=zipped)
    hf.check_model(folder, "--start")
    assert hf.MASKED_LM.from_pretrained(folder).config.vocab_size == tiny_bert().config.vocab_size


def test_damaged_pickled_weights_are_refused_unless_others_are_read(folder: Path) -> None:
    whole = pickled(folder).read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1"
    for damaged in (whole[: len(whole) // 2], whole[:-1], pointer, b""):
        (folder / "pytorch_model.bin").write_bytes(damaged)
        with pytest.raises(RequestError, match=r"pytorch_model\.bin is damaged \(.*\); give .* by --start"):
            hf.check_model(folder, "--start")
    tiny_bert().save_pretrained(folder)
    hf.check_model(folder, "--start")


def test_a_lost_part_of_the_weights_is_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    parts = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(parts))
    with pytest.raises(RequestError, match=r"lacks part-2\.safetensors, which model\.safetensors\.index\.json lists"):
        hf.check_model(folder, "--start")


@pytest.mark.parametrize("text", ["{", '{"model_type": "bert", "hidden_size": "wide"}'])
def test_a_damaged_config_is_refused(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(RequestError, match=r"(?s)config\.json is damaged.*--start"):
        hf.check_model(folder, "--start")


def test_a_model_with_its_head_loads_whole(folder: Path) -> None:
    model, new = hf.load_mlm(folder, seed=0)
    expected = BertForMaskedLM.from_pretrained(folder).state_dict()
    assert new == []
    assert [name for name, p in model.state_dict().items() if not torch.equal(p, expected[name])] == []


@pytest.mark.parametrize("changes", [{"num_attention_heads": 0}, {"hidden_act": "none"}])
def test_weights_that_are_not_those_of_the_config_are_refused_in_a_line(changes: dict[str, Any], folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(RequestError, match=r"(?s)cannot be loaded.*complete folder by --rtd.generator") as told:
        hf.load_mlm(folder, 0, "--rtd.generator")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("load", [hf.load_mlm, load_discriminator])
def test_an_encoder_without_its_weights_is_refused(load: Any, folder: Path) -> None:
    """It would be trained from nothing."""
    weights = load_file(folder / "model.safetensors")
    save_file({f"x.{name}": one for name, one in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(RequestError, match=r"has no weights, or of another shape, for \d+ parameters of the encoder"):
        load(folder, 0)


def test_a_weight_of_another_shape_is_named_with_both(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"intermediate_size": 99}))
    with pytest.raises(RequestError, match=r"intermediate\.dense\.bias of shape \[24\] where .* asks for \[99\]"):
        hf.load_mlm(folder, 0)


@pytest.mark.parametrize("load", [hf.load_mlm, load_discriminator])
def test_a_model_whose_config_asks_for_attentions_can_be_saved(load: Any, folder: Path, tmp_path: Path) -> None:
    """After a thousand steps its first checkpoint was refused."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"output_attentions": True}))
    load(folder, 0)[0].save_pretrained(tmp_path / "saved")


def test_a_file_of_weights_that_is_not_read_makes_no_other_model(folder: Path) -> None:
    known = hf.weights_sha256(folder)
    (folder / "pytorch_model.bin").write_bytes(b"as others leave it")
    hf.weights_sha256.cache_clear()
    assert hf.weights_sha256(folder) == known


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key"),
        ({"model_type": "roberta", "pad_token_id": None}, "no pad_token_id, from which it counts positions"),
    ],
)
def test_positions_that_cannot_be_known_are_refused(changes: dict[str, Any], told: str, folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(RequestError, match=told):
        hf.check_model(folder, "--model")


def test_each_file_of_a_tokenizers_settings_makes_another_reader(folder: Path) -> None:
    before = hf.settings_sha256(folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        (folder / name).write_text('{"changed": true}')
        after = hf.settings_sha256(folder)
        assert after != before, name
        before = after


def test_an_index_without_files_is_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(RequestError, match="is damaged: it has no weight_map; give a complete folder by --model"):
        hf.check_model(folder, "--model")


def test_a_missing_head_is_named_and_drawn_from_the_seed(folder: Path, tmp_path: Path) -> None:
    headless: Any = tiny_bert().base_model
    headless.save_pretrained(tmp_path / "headless")
    runs = [hf.load_mlm(tmp_path / "headless", seed) for seed in (1, 1, 2)]
    assert runs[0][1]
    assert all(name.startswith("cls.") for name in runs[0][1])
    drawn = [run[0].state_dict()["cls.predictions.transform.dense.weight"] for run in runs]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_new_model_has_the_shape_of_the_folder(folder: Path) -> None:
    shapes = {name: p.shape for name, p in hf.new_mlm(folder).state_dict().items()}
    assert shapes == {name: p.shape for name, p in tiny_bert().state_dict().items()}


def test_the_progress_bar_is_afterwards_as_the_user_had_it() -> None:
    before = hf_logging.is_progress_bar_enabled()
    try:
        for switch, on in ((hf_logging.disable_progress_bar, False), (hf_logging.enable_progress_bar, True)):
            switch()
            with hf.quiet():
                assert not hf_logging.is_progress_bar_enabled()
            assert hf_logging.is_progress_bar_enabled() == on
    finally:
        (hf_logging.enable_progress_bar if before else hf_logging.disable_progress_bar)()
