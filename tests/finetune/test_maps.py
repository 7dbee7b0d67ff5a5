"""The maps command on a folder as pretrain export writes it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from asa.adversary import ASAConfig
from asa.attention import attach
from asa.errors import RequestError
from finetune.config import MapsConfig
from finetune.maps import maps, read


@pytest.fixture
def exported(model_folder: Path, tmp_path: Path) -> Path:
    """The tiny model with an adversary that was not trained, but is not indifferent either."""
    folder = tmp_path / "export"
    folder.mkdir()
    for path in model_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    torch.manual_seed(1)
    adversary = attach(AutoModel.from_pretrained(model_folder), ASAConfig(heads="each"))
    for p in adversary.parameters():
        torch.nn.init.normal_(p)
    adversary.save_pretrained(folder)
    return folder


def test_it_draws_weights_that_are_weights_and_masks_that_mask(exported: Path) -> None:
    tokens, layers = read(exported, "a red b c d e f")
    assert tokens[:3] == ["[CLS]", "a", "red"]
    assert len(layers) == 2
    for layer in layers:
        assert layer.keep_LL.shape == (len(tokens), len(tokens))
        for weights_LL in (layer.clean_LL, layer.attacked_LL):
            torch.testing.assert_close(weights_LL.sum(-1), torch.ones(len(tokens)))
        nowhere = layer.keep_LL == 0  # masked by both heads
        assert 0 < nowhere.float().mean() < 1
        assert layer.attacked_LL[nowhere].max() < 1e-6
        assert layer.clean_LL[nowhere].max() > 1e-3


def test_the_picture_is_written_and_wrong_requests_are_named(
    exported: Path, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pictures" / "maps.png"
    maps(MapsConfig(model=exported, text="a red b", out=out, layers=(1,)))
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "layer 1" in capsys.readouterr().out
    for changes, message in (
        ({"layers": (2,)}, "layers 0 to 1; set --layers"),
        ({"out": tmp_path / "x.jpeg"}, "set --out"),
        ({"model": model_folder}, "no saved adversary"),
        ({"text": "a " * 40}, "reads at most 32"),
    ):
        with pytest.raises(RequestError, match=message):
            maps(MapsConfig(**{"model": exported, "text": "a red b", "out": out, **changes}))
