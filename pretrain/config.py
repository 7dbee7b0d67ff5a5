"""The typed configurations of a pre-training run and an export, and the checks that need no model."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field
from transformers import PreTrainedTokenizerFast

from asa import hf, manifest, rtd
from asa.adversary import ASAConfig
from asa.config import config
from asa.engine import Precision
from asa.errors import RequestError
from asa.families import family
from asa.methods import OURS, Method, MethodName, MethodsConfig, build_method, limits
from asa.optim import OptimConfig
from asa.tokenizer import encoder_sha256, load_tokenizer, vocab_sha256
from pretrain.masking import Masking
from pretrain.words import words_of


@config
class RTDConfig:
    """Replaced-token detection: the generator and its part in the loss."""

    generator: Path | None = None
    """Hugging Face folder of the generator, a masked LM with the vocabulary and embedding width of `model`; default:
    the masked LM of `model` itself. A quarter to a half of the model's width is best and cheapest."""
    generator_weight: Annotated[float, Field(gt=0, le=10)] = 0.02
    """Weight of the generator's loss beside the discriminator's, whose is 1; ELECTRA's 50 to 1 is 0.02."""


@config
class PretrainConfig(MethodsConfig):
    """Continual pre-training of a Hugging Face checkpoint under DeepSpeed ZeRO."""

    data: Path
    """Shard folder made by data_prep."""
    model: Path
    """Hugging Face folder to start from; its tokenizer must be the one of the shards."""
    out: Path
    """Run folder: record, TensorBoard, checkpoints. An unfinished run in it is continued."""
    objective: Literal["mlm", "rtd"] = "mlm"
    """What is learnt: mlm (predict masked tokens) or rtd (tell the tokens that a generator has replaced, ELECTRA's)."""
    method: MethodName = "asa"
    """Training method: vanilla (the paper's longer-trained control), asa (Adversarial Self-Attention, Eq. 10),
    asa_sparse, asa_freelb, random_mask (naive masking), pgd, freeat, yopo, freelb, fgm, smart, smart_released, alum,
    vat, r3f, r_drop or creat; docs/methods.md describes them."""
    steps: Annotated[int, Field(ge=1)] = 20_000
    """Optimizer steps (of freeat steps of `replays` updates each): batches of `global_batch` rows."""
    global_batch: Annotated[int, Field(ge=1, le=2**20)] = 1024
    """Rows per optimizer step over all processes; the rows of a step depend on it and the seed alone."""
    micro_batch: Annotated[int, Field(ge=1)] = 128
    """Rows per forward pass of one process at most; the largest that divides its share of global_batch is taken."""
    mask_share: Annotated[float, Field(gt=0, le=0.5)] = 0.15
    """Share of a row's tokens that are predicted; every full row predicts the same number."""
    masking: Masking = "token"
    """What is masked: token (single ones), word (whole words) or span (runs of 1 to 10 words, 3.8 on average)."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    """Seed of sample order, MLM masks, dropout and new parameters."""
    zero: Literal[0, 1, 2, 3] = 2
    """DeepSpeed ZeRO stage; in bf16 and fp16, 2 works in the place of 0 and 1."""
    offload: bool = False
    """Keep the optimizer's state, 12 bytes per parameter, in the CPU's memory and update there; ZeRO 1, 2 or 3."""
    precision: Precision = "fp32"
    """Arithmetic of model, adversary and gradients; the adversary's scores and all losses are computed in fp32. fp16
    needs a GPU."""
    deterministic: bool = False
    """Only kernels that give the same bits every time, which CUDA's fastest do not: a resumed run on GPUs needs it to
    equal the uninterrupted one bit for bit. On a CPU they do so anyway."""
    activation_checkpointing: bool = False
    """Compute each layer's activations again in the backward pass: about a third more time, far less memory."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and schedule."""
    asa: ASAConfig = ASAConfig.pretraining()
    """Settings of the methods with ASA in their names, Adversarial Self-Attention."""
    rtd: RTDConfig = RTDConfig()
    """Settings of objective rtd, replaced-token detection."""
    log_every: Annotated[int, Field(ge=1)] = 10
    """Optimizer steps between log lines; each one waits for the device once."""
    eval_every: Annotated[int, Field(ge=1)] = 500
    """Optimizer steps between held-out evaluations; one is made before the first and after the last step."""
    eval_rows: Annotated[int, Field(ge=1)] = 1024
    """Held-out rows used at most, at even distances: of every source."""
    save_every: Annotated[int, Field(ge=1)] = 1000
    """Optimizer steps between checkpoints; one is made after the last step."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Newest checkpoints kept."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What follows a loss or gradient that is NaN or infinite and is never applied: stop (the rows are named and the
    run ends with exit code 1) or skip (they are named and recorded; ten in a row stop it). FP16 overflows are none."""
    on_save_error: Literal["stop", "continue"] = "stop"
    """What follows a checkpoint or a line of the record that cannot be written, as on a full disk: stop, or continue
    without it. Older checkpoints are kept either way; the last one must be written."""
    hang_timeout: Annotated[float, Field(ge=0, le=86_400)] = 1800
    """Seconds without progress after which a run ends and names the rank that keeps the others waiting; 0: never. It
    must be longer than one micro-batch, saving a checkpoint, and reading all shards and a checkpoint at the start."""
    wandb: str | None = None
    """Project of Weights & Biases that gets the figures too; needs the extra of that name. null: none."""

    def micro(self, world: int) -> int:
        """Rows per forward pass when `world` processes share the global batch."""
        share = self.global_batch // world
        return next(size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0)

    def slots(self, world: int) -> int:
        """Micro-batches per optimizer step and process."""
        return self.global_batch // (self.micro(world) * world)


@config
class ExportConfig:
    """Write a checkpoint as a Hugging Face folder; the adversary goes beside the model, not into it."""

    checkpoint: Path
    """Checkpoint (step-N) or run folder, of which the newest checkpoint is taken."""
    out: Path
    """Hugging Face folder to make."""
    overwrite: bool = False
    """Replace `out` where an export stands, and nothing else in it."""


def unread_by(objective: str, method: str) -> set[str]:
    """Groups and dotted names of settings that the method's groups have and that are not read: the other objective's,
    those of losses of a kind that this one does not have, and what asa_freelb has in another way."""
    others = {"rtd"} if objective == "mlm" else set[str]()
    if method == "asa_freelb":
        others |= {"asa.dropout", "asa.stop_gradient"}  # its passes have freelb.dropout and one fixed target
    if method not in OURS:
        return others
    return others | {"asa.regression", "asa.token_mean" if objective == "mlm" else "asa.sentence"}


def check(config: PretrainConfig, world: int, cuda: bool) -> None:
    """Refuse, before any model is built, what cannot run. Raises RequestError or WorkError."""
    limits.check_precision(config.precision, cuda)
    if config.offload and config.zero == 0:
        raise RequestError("offload needs a partitioned optimizer, ZeRO 1 to 3; set --zero 1, or --offload false")
    if config.global_batch % world:
        raise RequestError(
            f"global_batch {config.global_batch} cannot be shared by {world} processes;"
            f" set --global_batch to a multiple of {world}, or --nproc"
        )
    if config.deterministic and config.objective == "rtd" and cuda:
        raise RequestError(
            "the generator's draws have no deterministic CUDA kernel; set --deterministic false or --objective mlm"
        )
    if config.wandb is not None and find_spec("wandb") is None:
        raise RequestError("wandb is not installed: pip install wandb, or leave --wandb out")
    _check_out(config)
    method = _check_method(config)
    facts = manifest.read(config.data, "shards", "--data")
    for split, rows in facts["rows"].items():
        if not rows:
            raise RequestError(f"{config.data} has no {split} row; build it from more text or with another --heldout")
    hf.check_model(config.model, "--model", facts["length"])
    _check_tokenizer(config, facts)  # another's has another number of ids as well
    hf.check_model(config.model, "--model", facts["length"], facts["vocab_size"])
    limits.check_depth(method, hf.read_config(config.model).num_hidden_layers)
    _check_recomputes(config, config.model)
    if config.masking != "token":
        words_of(config.data / "tokenizer", facts["vocab_size"])
    if config.objective == "rtd" and config.rtd.generator is not None:
        _check_generator(config.rtd.generator, config.model, facts)
        _check_recomputes(config, config.rtd.generator)


def _check_out(config: PretrainConfig) -> None:
    given = {"data": config.data, "model": config.model}
    given |= {"rtd.generator": config.rtd.generator} if config.objective == "rtd" and config.rtd.generator else {}
    for name, folder in given.items():
        if os.path.realpath(folder) == os.path.realpath(config.out):
            raise RequestError(
                f"out = {config.out} is the folder of {name}, which a run must not be mixed with; set --out"
            )
    manifest.check_free(config.out, "--out")


def _check_method(config: PretrainConfig) -> Method:
    name = config.method
    method = build_method(name, config, config.precision, config.zero)
    if method.replays > 1 and config.objective == "rtd":
        raise RequestError(
            f"method {name} replays a window that the generator learns from once only; set --objective mlm"
        )
    return method


def _check_generator(folder: Path, model: Path, facts: dict[str, Any]) -> None:
    hf.check_model(folder, "--rtd.generator", facts["length"], facts["vocab_size"])
    if vocab_sha256(load_tokenizer(folder, "--rtd.generator")) != facts["tokenizer_sha256"]:
        raise RequestError(f"the generator {folder} has another vocabulary than {model}; set --rtd.generator")
    rtd.check_pair(hf.read_config(model), hf.read_config(folder))


def _check_recomputes(config: PretrainConfig, folder: Path) -> None:
    if config.activation_checkpointing and not family(hf.read_config(folder).model_type).recomputes:
        raise RequestError(f"{folder} knows no activation checkpointing; set --activation_checkpointing false")


def _check_tokenizer(config: PretrainConfig, facts: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(config.model, "--model")
    found = vocab_sha256(tokenizer)
    if found != facts["tokenizer_sha256"]:
        raise RequestError(
            f"the shards in {config.data} (vocab {facts['tokenizer_sha256'][:12]}) were made with another tokenizer"
            f" than {config.model} has (vocab {found[:12]}); rebuild them with data_prep build --model {config.model},"
            f" or set --model or --data"
        )
    if encoder_sha256(cast(PreTrainedTokenizerFast, tokenizer)) != facts["encoder_sha256"]:
        raise RequestError(
            f"the shards in {config.data} were made with a tokenizer of the same vocabulary that reads texts otherwise"
            f" (normalisation, splitting or merges) than that of {config.model}, which would be exported; rebuild them"
            f" with data_prep build --model {config.model}, or set --model or --data"
        )
