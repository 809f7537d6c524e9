"""The warm process's findings about GPUs, on a machine without one. `tests/system/gpu/test_warm.py` needs one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from supervisor.wire import gpus

ASKED = """
    import json, os, time, torch
    asked = []
    def is_available():
        asked.append(os.getpid())
        return {there}
    torch.cuda.is_available = is_available
    from titan_actor import mends
    mends.ASIDE_S = 1
    mends.ask_aside_for_cuda()
    unknown = mends.ask_aside_for_cuda()
    told = [] if unknown else [mends.on_gpu(), torch.cuda.is_available()]
    print(json.dumps({{"told": told, "asked_here": len(asked), "unknown": unknown}}))
"""

WARMED = """
    import json, os, time, torch
    torch.cuda.is_available = lambda: {there}
    from titan_actor import mends, warm
    mends.ASIDE_S = 1
    print(json.dumps(warm.warm_up()))
"""

TRIED = """
    import json
    from titan_actor import warm
    print(json.dumps(warm._forked_without_gpu()))
"""


def said(code: str) -> Any:
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    return json.loads(subprocess.run(program, capture_output=True, text=True, timeout=120, check=True).stdout)


def test_cuda_is_asked_for_by_another_process_and_known_here() -> None:
    for there in (True, False):
        assert said(ASKED.format(there=there)) == {"told": [there, there], "asked_here": 0, "unknown": ""}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param("os.kill(os.getpid(), 9)", -9, marks=pytest.mark.long),
        ("1 / 0", 2),
        ("time.sleep(60)", -signal.SIGALRM),
    ],
)
def test_where_nobody_knows_there_are_no_warm_starts(answer: str, code: int) -> None:
    """Forked trainers would train on a processor, beside others on GPUs."""
    why = f"the process that asked for CUDA ended with {int(code)}"
    assert said(ASKED.format(there=answer)) == {"told": [], "asked_here": 0, "unknown": why}
    assert said(WARMED.format(there=answer)) == {"problem": why}


@pytest.mark.skipif(gpus.DEVICES.joinpath("nvidiactl").exists(), reason="an NVIDIA GPU here")
def test_what_a_fork_cannot_do_is_said() -> None:
    why = said(TRIED)
    assert "CUDA" in why or "NVIDIA" in why
