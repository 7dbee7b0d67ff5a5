"""What DeepSpeed is told: every ZeRO key is ours, but for features that are off."""

from asa.optim import OptimConfig
from asa.zero_settings import deepspeed_settings

# Quantisation, hierarchical partitions and the like: off by default, and we offer no switch for them.
OFF = (
    "offload_param",
    "cpu_offload",
    "zero_",
    "zenflow",
    "mics_",
    "stage3_use_all_reduce",
    "stage3_module_granularity",
    "stage3_allgather",
    "legacy_",
    "memory_efficient",
    "override_module_apply",
    "log_trace",
    "enable_sanity",
    "param_",
    "gather_",
    "prefetch_",
    "max_",
    "model_persistence",
    "stage3_model_persistence",
    "leaf_module",
    "parameter_alignment",
    "save_muon",
    "pipeline_loading",
    "stage3_gather_fp16",
)


def test_every_zero_key_that_is_not_off_is_written() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    written = deepspeed_settings(OptimConfig(), 2, "fp32", 4)["zero_optimization"]
    names = {field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()}
    assert {name for name in names - written.keys() if not name.startswith(OFF)} == set()
    assert written.keys() <= names


def test_clipping_and_accumulation_are_never_left_to_defaults() -> None:
    settings = deepspeed_settings(OptimConfig(clip=0), 1, "fp16", 4)
    assert settings["gradient_clipping"] == 0
    assert settings["managed_gradient_accumulation"] is False
    assert settings["fp16"]["enabled"]
    assert not settings["bf16"]["enabled"]


def test_offload_moves_the_optimizer_to_the_cpu_and_needs_nothing_compiled() -> None:
    for offload, device in ((False, "none"), (True, "cpu")):
        settings = deepspeed_settings(OptimConfig(), 2, "fp32", 4, offload)
        assert settings["zero_optimization"]["offload_optimizer"]["device"] == device
        assert settings["zero_force_ds_cpu_optimizer"] is False
