"""What DeepSpeed is told."""

from typing import Any

import torch

from asa import dist
from asa.engine import Precision
from asa.loss_scale import MIN_LOSS_SCALE
from asa.optim import OptimConfig


def working_stage(zero: int, precision: Precision) -> int:
    """The ZeRO stage that does the work of stage `zero`: in half precision 2 for 0 and 1.

    Gradients are summed over the window in fp32, or each further micro-batch would be rounded against all before it.
    DeepSpeed does that on 2 and 3 alone: 0 refuses it, and on 1 its BF16 optimizer counts several backwards wrongly.
    """
    return zero if precision == "fp32" else max(zero, 2)


def deepspeed_settings(
    optim: OptimConfig, zero: int, precision: Precision, micro_batch: int, offload: bool = False
) -> dict[str, Any]:
    """DeepSpeed's configuration with every key we rely on: absent ones have defaults that surprise (clipping at 1)."""
    return {
        "train_batch_size": micro_batch * dist.world(),
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optim.clip,
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": _zero(zero, offload),
        "zero_allow_untested_optimizer": False,
        # With offload too, the fused AdamW of torch updates on the CPU: nothing to compile.
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {
            "enabled": precision == "fp16",
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": MIN_LOSS_SCALE,
        },
        "bf16": {"enabled": precision == "bf16", "check_grad_overflow": True},
        "steps_per_print": 2**31,
        # It would wait for the device before each forward and after each step, for a rate that nothing prints.
        "timers": {"throughput": {"enabled": False}},
        "wall_clock_breakdown": False,
        "dump_state": False,
    }


def _zero(stage: int, offload: bool) -> dict[str, Any]:
    return {
        "stage": stage,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "overlap_comm": False,
        "reduce_bucket_size": 50_000_000,
        "allgather_bucket_size": 50_000_000,
        "allgather_partitions": True,
        "use_multi_rank_bucket_allreduce": True,
        "round_robin_gradients": False,
        "ignore_unused_parameters": True,
        "load_from_fp32_weights": True,
        "elastic_checkpoint": False,
        "compute_grad_norm": True,
        "sub_group_size": 1_000_000_000,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 0,
        "stage3_gather_16bit_weights_on_model_save": False,
        "offload_optimizer": {"device": "cpu" if offload else "none", "pin_memory": torch.cuda.is_available()},
    }
