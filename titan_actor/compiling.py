"""Reports when torch.compile compiles: a step with a new shape spends minutes on it, in one group or one rank alone.

Dynamo calls back when it compiles a frame, and when it compiles a backward pass on its first use. It does not report
kernels that Triton tries out at run time, or other compilers. `torch._dynamo.reset()` forgets the callbacks.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from titan_actor.activity import ActivityFile
from titan_actor.seconds import Seconds


class Compiling:
    """Watches the whole process from its construction on. The main thread waits for a backward pass's compilation."""

    def __init__(self, activity: ActivityFile, seconds: Seconds) -> None:
        from torch._dynamo import on_compile_end, on_compile_start

        self._activity, self._seconds = activity, seconds
        self._block = ExitStack()
        on_compile_start(self._begins)
        on_compile_end(self._ends)

    def _begins(self, _: Any) -> None:
        """Begins the compile part. Nested compilations call once."""
        self._block.enter_context(self._seconds.part("compile"))
        self._block.enter_context(self._activity.during("compile"))

    def _ends(self, _: Any) -> None:
        self._block.close()
