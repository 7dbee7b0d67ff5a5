"""The maps command on a folder as pretrain export writes it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from asa import manifest, record
from asa.adversary import FILE as ADVERSARY_FILE
from asa.adversary import ASAConfig
from asa.attention import attach
from asa.errors import RequestError
from asa.families import FAMILIES
from finetune.config import MapsConfig
from finetune.maps import maps, read
from finetune.report.attention import ENDING, load
from tests.asa.encoders import tiny
from tests.finetune.conftest import write_model

each_family = pytest.mark.parametrize("bare", FAMILIES, indirect=True)


@pytest.fixture
def bare(request: pytest.FixtureRequest, model_folder: Path, tmp_path: Path) -> Path:
    """A tiny encoder with a tokenizer, of the family that a test asks for."""
    folder = tmp_path / "bare"
    tiny(getattr(request, "param", "bert")).save_pretrained(folder)
    for path in model_folder.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture
def exported(bare: Path, tmp_path: Path) -> Path:
    """The same with an adversary that was not trained, but is not indifferent either."""
    folder = shutil.copytree(bare, tmp_path / "export")
    torch.manual_seed(1)
    adversary = attach(AutoModel.from_pretrained(bare, attn_implementation="eager"), ASAConfig(heads="each"))
    for p in adversary.parameters():
        torch.nn.init.normal_(p)
    adversary.save_pretrained(folder)
    return folder


@each_family
def test_it_draws_weights_that_are_weights_and_masks_that_mask(exported: Path) -> None:
    found = read(MapsConfig(model=exported, text="a red b c d e f", out=Path("x.png")))
    assert found.tokens[:3] == ["[CLS]", "a", "red"]
    assert list(found.layers) == [0, 1]
    for layer in found.layers.values():
        assert layer.keep_LL.shape == (len(found.tokens), len(found.tokens))
        for weights_LL in (layer.clean_LL, layer.attacked_LL):
            np.testing.assert_allclose(weights_LL.sum(-1), 1, rtol=1e-5)
        nowhere = layer.keep_LL == 0  # masked by both heads
        assert 0 < nowhere.mean() < 1
        assert layer.attacked_LL[nowhere].max() < 1e-6
        assert layer.clean_LL[nowhere].max() > 1e-3


@each_family
def test_a_run_that_kept_its_model_is_drawn_under_its_own_name(exported: Path, tmp_path: Path) -> None:
    run = tmp_path / "tiny-asa-0"
    record.Record(run, {"stage": "finetune"}).end({})
    with pytest.raises(RequestError, match="has kept no model"):
        read(MapsConfig(model=run, text="a red b c", out=Path("x.png")))
    manifest.write(Path(shutil.copytree(exported, run / "model")), "model", {})
    found = read(MapsConfig(model=run, beside=run, text="a red b c", out=Path("x.png")))
    assert (found.model, found.beside) == ("tiny-asa-0", "tiny-asa-0")


def test_a_head_is_one_of_those_whose_mean_is_drawn(exported: Path) -> None:
    mean, *heads = (
        read(MapsConfig(model=exported, text="a red b c", out=Path("x.png"), head=head)).layers[1]
        for head in (None, 0, 1)
    )
    for part in ("clean_LL", "keep_LL", "attacked_LL"):
        both = [getattr(head, part) for head in heads]
        np.testing.assert_allclose(getattr(mean, part), np.mean(both, axis=0), atol=1e-6)
        assert not np.array_equal(*both)
    assert mean.masked == pytest.approx(np.mean([head.masked for head in heads]))
    assert heads[0].masked != heads[1].masked
    assert set(np.unique(heads[0].keep_LL)) == {0.0, 1.0}


@each_family
def test_a_second_models_attention_stands_beside(exported: Path, bare: Path) -> None:
    found = read(MapsConfig(model=exported, beside=bare, text="a red b c", out=Path("x.png"), layers=(1,)))
    assert list(found.layers) == [1]
    beside_LL = found.layers[1].beside_LL
    assert beside_LL is not None
    np.testing.assert_allclose(beside_LL, found.layers[1].clean_LL, atol=1e-6)  # the same weights in both folders


def test_letters_that_the_font_lacks_are_told_in_one_line(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.maps.paint", lambda figure, found: figure.text(0, 0, "中文 red 中"))
    maps(MapsConfig(model=exported, text="a red b", out=tmp_path / "x.png"))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert told == ["note: the picture's font has no 中, 文; the file of numbers has them"]


def test_the_picture_is_written_with_its_numbers_and_wrong_requests_are_named(
    exported: Path, bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pictures" / "maps.png"
    maps(MapsConfig(model=exported, text="a red b", out=out, layers=(1,)))
    assert out.read_bytes().startswith(b"\x89PNG")
    assert re.search(
        r"layer 1: \d+\.\d% of the pairs masked, most \S+ from \d+% of the tokens", capsys.readouterr().out
    )
    found, again = read(MapsConfig(model=exported, text="a red b", out=out, layers=(1,))), load(out.with_suffix(ENDING))
    assert again._replace(layers={}) == found._replace(layers={})
    np.testing.assert_allclose(again.layers[1].attacked_LL, found.layers[1].attacked_LL, atol=1e-4)
    (tmp_path / "taken.maps.json").mkdir()
    shutil.copytree(exported, cut := tmp_path / "cut")
    (cut / ADVERSARY_FILE).write_bytes((cut / ADVERSARY_FILE).read_bytes()[:40])
    shutil.copytree(exported, lost := tmp_path / "lost")
    weights = load_file(lost / "model.safetensors")
    save_file({f"x.{name}": one for name, one in weights.items()}, lost / "model.safetensors", {"format": "pt"})
    shutil.copytree(exported, other := tmp_path / "other")
    settings = json.loads((other / "config.json").read_text()) | {"intermediate_size": 48}
    (other / "config.json").write_text(json.dumps(settings))
    (one_head := tmp_path / "one_head").mkdir()
    write_model(one_head, num_attention_heads=1)
    for changes, message in (
        ({"layers": (2,)}, "layers 0 to 1; set --layers"),
        ({"head": 2}, "heads 0 to 1; set --head"),
        ({"out": tmp_path / "x.jpeg"}, "set --out"),
        ({"out": tmp_path}, "set --out"),
        ({"out": tmp_path / "pictures" / "maps.png" / "x.png"}, "maps.png is no folder; set another --out"),
        ({"out": tmp_path / "taken.png"}, r"taken\.maps\.json is a folder; set --out to a file"),
        ({"model": cut}, r"adversary\.safetensors is damaged \(.*\); give a complete folder by --model"),
        ({"model": lost}, r"lost has no weights, or of another shape, for \d+ .*; give a complete folder by --model"),
        ({"model": other}, r"other cannot be loaded \(.*\); give a complete folder by --model"),
        ({"model": bare}, r"no saved adversary .*give the export of a run with method asa by --model"),
        ({"beside": tmp_path}, "--beside"),
        ({"beside": one_head, "head": 1}, "head = 1: .*one_head has heads 0 to 0; set --head or --beside"),
        ({"text": "a " * 40}, "reads at most 10"),
    ):
        with pytest.raises(RequestError, match=message):
            maps(MapsConfig(**{"model": exported, "text": "a red b", "out": out, **changes}))
    assert not (tmp_path / "taken.png").exists()
