"""TorchTitan's own configs, as they are in its wheel, train in replica groups: killed, healed, equal at the end."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core.model.spec import DataSpec
from tests.titan.groups import Groups, assert_equal_digests

SMALL = {
    "training.local_batch_size": 2,
    "training.seq_len": 64,
    "training.mixed_precision_param": "float32",
    "validator.enable": False,
    "profiler.enable_profiling": False,
    "comm.trace_buf_size": 0,
    "comm.train_timeout_seconds": 60,
}
"""A debug model of theirs at a size that a shared core trains."""

STEPS = 20

DAY = ("llama3:llama3_debugmodel",)
NIGHT = ("deepseek_v3:deepseek_v3_debugmodel", "qwen3:qwen3_debugmodel", "qwen3:qwen3_debugmodel_non_fused_qkv")


@pytest.mark.parametrize("name", [*DAY, *(pytest.param(name, marks=pytest.mark.long) for name in NIGHT)])
def test_a_stock_config_trains_through_a_kill(groups: Groups, name: str) -> None:
    model, function = name.split(":")
    keeps: dict[str, Any] = {
        "recipe": f"torchtitan.models.{model}.config_registry:{function}",
        "overrides": SMALL,
        "data": DataSpec(source="python-stdlib"),
        "steps": STEPS,
    }
    survivor, lost = groups.start(0, **keeps), groups.start(1, **keeps)
    lost.reached(5, commits=2)
    lost.kill()
    back = groups.start(1, generation=2, resume="peers", **keeps)
    assert [survivor.exit_code(), back.exit_code()] == [0, 0], survivor.log()[-1500:] + back.log()[-1500:]
    assert_equal_digests(survivor, back)
    joint = [line for line in back.lines("step") if line["committed"] and line["participants"] == 2]
    assert joint, "it trained with the other after its kill"
