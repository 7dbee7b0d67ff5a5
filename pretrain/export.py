"""Checkpoint -> an ordinary Hugging Face folder, published only after its logits equal the trained module's."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from asa import checkpoint, hf, manifest
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.config import config, from_dict
from asa.engine import load_parameters
from asa.errors import RequestError, WorkError
from asa.families import family
from asa.model import TaskModel

KIND = "export"
PARITY = 1e-5  # largest difference of a logit, absolute


@config
class ExportConfig:
    """Write a checkpoint as a Hugging Face folder; the adversary goes beside the model, not into it."""

    checkpoint: Path
    """Checkpoint (step-N) or run folder, of which the newest checkpoint is taken."""
    out: Path
    """Hugging Face folder to make."""
    overwrite: bool = False
    """Replace `out` if it exists."""


def export(request: ExportConfig) -> float:
    """Make `request.out`; the largest logit difference between the trained module and the reloaded folder.

    Raises: RequestError for a wrong request, WorkError for a damaged checkpoint or logits that differ.
    """
    if request.out.exists() and not request.overwrite:
        raise RequestError(f"{request.out} exists; set --overwrite true to replace it, or another --out")
    manifest.replaceable(request.out, KIND, "--out")
    source = checkpoint.find(request.checkpoint, "--checkpoint")
    state, facts = checkpoint.read_model(source, "--checkpoint")
    asa = from_dict(ASAConfig, facts["config"]["asa"]) if "adversary.0.query.weight" in state else None
    trained = TaskModel(hf.new_mlm(source / "hf"), "mlm", asa).eval()
    load_parameters(trained, state)
    with manifest.staging(request.out) as folder:
        trained.model.save_pretrained(folder)
        hf.load_tokenizer(source / "hf", "--checkpoint").save_pretrained(folder)
        (folder / "README.md").write_text(_card(facts))
        if trained.adversary is not None:
            trained.adversary.save_pretrained(folder)
        difference = parity(trained, folder)
        if not difference <= PARITY:
            raise WorkError(
                f"the exported logits differ from the trained ones by {difference:.1e}, more than {PARITY:g}"
            )
        manifest.write(folder, KIND, {"source": source.name, "step": facts["step"], "parity": difference})
    return difference


def parity(trained: TaskModel, folder: Path) -> float:
    """Largest logit difference on a padded batch between the trained module and `folder` as Hugging Face loads it."""
    reloaded: PreTrainedModel = AutoModelForMaskedLM.from_pretrained(folder).eval()
    batch = _probe_batch(trained.model.config)
    with torch.no_grad():
        ours_MV = trained(batch).logits
        theirs_BLV: Tensor = reloaded(**batch.inputs).logits
    return (theirs_BLV.flatten(0, 1)[batch.positions] - ours_MV).abs().max().item()


def _probe_batch(settings: PretrainedConfig) -> Batch:
    """Four rows of random ids, three of them padded."""
    length = min(32, family(settings.model_type).longest(settings))
    generator = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(0, settings.vocab_size, (4, length), generator=generator)
    mask_BL = torch.ones_like(ids_BL)
    mask_BL[1:, length // 2 :] = 0
    positions = mask_BL.flatten().nonzero().squeeze(-1)
    inputs = {"input_ids": ids_BL, "attention_mask": mask_BL}
    units = len(positions)
    return Batch("mlm", inputs, ids_BL.flatten()[positions], total_rows=4, total_labels=units, positions=positions)


def _card(facts: dict[str, Any]) -> str:
    settings = facts["config"]
    rows = {
        "method": settings["method"],
        "continued from": Path(settings["model"]).name,
        "optimizer steps": facts["step"],
        "global batch": settings["global_batch"],
        "peak learning rate": settings["optim"]["lr"],
        "tau": settings["asa"]["tau"] if settings["method"] == "asa" else "none",
        "seed": settings["seed"],
        "shards (sha256 of the manifest)": facts["shards"],
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return (
        "---\nlibrary_name: transformers\npipeline_tag: fill-mask\n---\n\n"
        "# Continually pre-trained masked language model\n\n"
        "Loads with `AutoModelForMaskedLM.from_pretrained`. `adversary.safetensors`, where present, holds the attention"
        " adversaries of the run; the model does not need them.\n\n"
        f"| | |\n|---|---|\n{table}\n"
    )
