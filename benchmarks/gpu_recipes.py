"""TorchTitan's debug model as its own registry gives it, for `benchmarks.gpu`: what a device adds is switched on there.

The loss is not the chunked one, whose backward pass ends torch 2.11 with SIGSEGV.
"""

from __future__ import annotations

from typing import Any


def stock() -> Any:
    """`llama3_debugmodel_ce_loss`, whose text is Python's standard library: batch 8 of 2048 tokens in bfloat16, flex attention."""
    from torchtitan.models.llama3 import config_registry

    return _here(config_registry.llama3_debugmodel_ce_loss())


def compiled() -> Any:
    """The same with `torch.compile`. FlashAttention (`varlen`) needs the package flash_attn_interface on Hopper GPUs."""
    from torchtitan.models.llama3 import config_registry

    config = _here(config_registry.llama3_debugmodel_ce_loss())
    config.compile.enable = True
    return config


def small() -> Any:
    """The same at a size that a processor trains, for a dry run."""
    config = stock()
    config.training.local_batch_size, config.training.seq_len = 2, 64
    config.training.mixed_precision_param = "float32"
    return config


def _here(config: Any) -> Any:
    config.validator.enable = False
    config.profiler.enable_profiling = False
    config.metrics.disable_color_printing = True
    return config
