"""Says when torch.compile compiles: a step with a new shape takes minutes of it, in one group or one rank alone.

Dynamo calls when it compiles a frame, and when a backward pass is compiled on its first use. What it does not tell: kernels
that Triton tries out at run time, and compilers of others. `torch._dynamo.reset()` forgets who wants to be told.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from titan_actor.activity import ActivityFile
from titan_actor.seconds import Seconds


class Compiling:
    """From its construction on, for the whole process. A backward pass is compiled in a thread for which the main thread waits."""

    def __init__(self, activity: ActivityFile, seconds: Seconds) -> None:
        from torch._dynamo import on_compile_end, on_compile_start

        self._activity, self._seconds = activity, seconds
        self._block = ExitStack()
        on_compile_start(self._begins)
        on_compile_end(self._ends)

    def _begins(self, _: Any) -> None:
        """Once for those that are compiled inside of each other."""
        self._block.enter_context(self._seconds.part("compile"))
        self._block.enter_context(self._activity.during("compile"))

    def _ends(self, _: Any) -> None:
        self._block.close()
