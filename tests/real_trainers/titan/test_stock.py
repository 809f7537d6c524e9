"""TorchTitan's own configs, as they are in its wheel, train in replica groups: killed, healed, equal at the end."""

from __future__ import annotations

import pytest

from tests.real_trainers.titan.groups import Groups
from tests.real_trainers.titan.stock_configs import EXPERIMENTS, settings, train

MODELS = "torchtitan.models"
DAY = (
    f"{MODELS}.llama3.config_registry:llama3_debugmodel",
    f"{MODELS}.llama3.config_registry:llama3_debugmodel_ce_loss",
    f"{MODELS}.llama3.config_registry:llama3_debugmodel_dist_gemm",
    f"{MODELS}.llama3.config_registry:sft_debugmodel",
    EXPERIMENTS + ":llama3_torchft_debugmodel",
)
NIGHT = (
    f"{MODELS}.qwen3.config_registry:qwen3_debugmodel",
    f"{MODELS}.qwen3.config_registry:qwen3_debugmodel_non_fused_qkv",
    f"{MODELS}.qwen3.config_registry:qwen3_moe_debug",
    f"{MODELS}.qwen3.config_registry:qwen3_debugmodel_moe_param_groups",
    f"{MODELS}.muse_glimmer.config_registry:muse_glimmer_debugmodel",
    f"{MODELS}.deepseek_v3.config_registry:deepseek_v3_debugmodel",
    f"{MODELS}.deepseek_v3.config_registry:deepseek_v3_debugmodel_mtp",
)
"""Vocabularies of 152,000 tokens make steps long, as do experts; Muse Glimmer takes the backend spmd_types alone."""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("recipe", [*DAY, *(pytest.param(name, marks=pytest.mark.long) for name in NIGHT)])
def test_a_stock_config_trains_through_a_kill(groups: Groups, recipe: str) -> None:
    train(groups, settings(recipe, groups.top))
