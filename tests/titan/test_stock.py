"""TorchTitan's own configs, as they are in its wheel, train in replica groups: killed, healed, equal at the end."""

from __future__ import annotations

import pytest

from supervisor.core.model.spec import DataSpec
from tests.titan.groups import Groups, assert_equal_digests

REGISTRY = "torchtitan.models.{}.config_registry:{}"
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

ALL = {
    "llama3": ["llama3_debugmodel", "llama3_debugmodel_varlen_attn", "llama3_debugmodel_dist_gemm", "sft_debugmodel"],
    "qwen3": [
        "qwen3_debugmodel",
        "qwen3_moe_debug",
        "qwen3_debugmodel_moe_param_groups",
        "qwen3_debugmodel_non_fused_qkv",
    ],
    "deepseek_v3": ["deepseek_v3_debugmodel", "deepseek_v3_debugmodel_mtp"],
    "gpt_oss": ["gpt_oss_debugmodel", "gpt_oss_debugmodel_flex"],
    "muse_glimmer": ["muse_glimmer_debugmodel"],
    "flux": ["flux_debugmodel"],
}


@pytest.mark.parametrize(("model", "name"), [(m, n) for m, names in ALL.items() for n in names])
def test_a_stock_config_trains_through_a_kill(groups: Groups, model: str, name: str) -> None:
    keeps = {
        "recipe": REGISTRY.format(model, name),
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
