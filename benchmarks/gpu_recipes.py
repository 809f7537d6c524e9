"""TorchTitan's debug model as its own registry gives it, for `benchmarks.gpu`: what a device adds is switched on there.

The loss is not the chunked one, whose backward pass ends torch 2.11 with SIGSEGV.
"""

from __future__ import annotations

import importlib.util
from typing import Any


def stock() -> Any:
    """`llama3_debugmodel_ce_loss`, whose text is Python's standard library: batch 8 of 2048 tokens in bfloat16, flex attention."""
    from torchtitan.models.llama3 import config_registry

    return _here(config_registry.llama3_debugmodel_ce_loss())


def compiled() -> Any:
    """The same with `torch.compile`."""
    from torchtitan.models.llama3 import config_registry

    config = _here(config_registry.llama3_debugmodel_ce_loss())
    config.compile.enable = True
    return config


def flash() -> Any:
    """The same with flash attention, which is TorchTitan's `varlen`: it has SDPA no longer. One step is traced.

    TorchTitan takes FlashAttention 3 on Hopper and 4 on Blackwell, from packages of their own. Where that is not installed,
    the one that torch itself brings (FlashAttention 2) attends.
    """
    from torchtitan.models.llama3 import model_registry
    from torchtitan.tools import utils

    newer = {"FA3": "flash_attn_interface", "FA4": "flash_attn"}.get(utils.get_cuda_flash_attention_impl() or "", "")
    if newer and importlib.util.find_spec(newer) is None:
        utils.get_cuda_flash_attention_impl = lambda: None
    config = compiled()
    config.model_spec = model_registry("debugmodel", attn_backend="varlen")
    return _traced(config)


def small_flash() -> Any:
    """The compiled one in bfloat16 for a processor, which has no `varlen`: SDPA attends there, by torch's flash kernel."""
    config = small()
    config.training.mixed_precision_param = "bfloat16"
    config.compile.enable = True
    return _traced(config)


def small() -> Any:
    """The same at a size that a processor trains, for a dry run."""
    config = stock()
    config.training.local_batch_size, config.training.seq_len = 2, 64
    config.training.mixed_precision_param = "float32"
    return config


def _traced(config: Any) -> Any:
    profiler = config.profiler
    profiler.enable_profiling, profiler.profiler_repeat = True, 1
    profiler.profile_freq, profiler.profiler_warmup, profiler.profiler_active = 40, 1, 1
    return config


def _here(config: Any) -> Any:
    config.validator.enable = False
    config.profiler.enable_profiling = False
    config.metrics.disable_color_printing = True
    return config
