"""TorchTitan's own configs, as they are in its wheel, train in replica groups: killed, healed, equal at the end."""

from __future__ import annotations

import pytest

from tests.titan.groups import Groups
from tests.titan.stock_configs import train

DAY = ("torchtitan.models.llama3.config_registry:llama3_debugmodel",)
NIGHT = (
    "torchtitan.models.deepseek_v3.config_registry:deepseek_v3_debugmodel",
    "torchtitan.models.qwen3.config_registry:qwen3_debugmodel",
)


@pytest.mark.parametrize("recipe", [*DAY, *(pytest.param(name, marks=pytest.mark.long) for name in NIGHT)])
def test_a_stock_config_trains_through_a_kill(groups: Groups, recipe: str) -> None:
    train(groups, recipe)
