"""What the warm process finds out about GPUs, where there is none. `tests/gpu/test_warm.py` is for a machine with one."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

ASKED = """
    import json, os, torch
    asked = []
    def is_available():
        asked.append(os.getpid())
        return {there}
    torch.cuda.is_available = is_available
    from titan_actor import mends
    mends.ask_aside_for_cuda()
    told = [mends.on_gpu(), torch.cuda.is_available()]
    mends.ask_aside_for_cuda()
    print(json.dumps({{"told": told, "asked_here": len(asked)}}))
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
    assert said(ASKED.format(there=True)) == {"told": [True, True], "asked_here": 0}
    assert said(ASKED.format(there=False)) == {"told": [False, False], "asked_here": 0}


def test_one_that_dies_of_asking_has_no_gpu() -> None:
    assert said(ASKED.format(there="os.kill(os.getpid(), 9)"))["told"] == [False, False]


def test_what_a_fork_cannot_do_is_said() -> None:
    why = said(TRIED)
    assert "CUDA" in why or "NVIDIA" in why
