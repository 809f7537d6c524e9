"""A slow disk for one process, or a test that is skipped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed import etcds
from fault_injection.testbed.unavailable import NotHere


@contextlib.contextmanager
def slow_disk(pid: int, delay_s: float, log: Path) -> Iterator[None]:
    """Delays every fsync and fdatasync of the process by `delay_s`. Skips the test where strace may not do that."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(etcds.slow_disk([pid], delay_s, log))
        except NotHere as error:
            pytest.skip(f"NO SLOW DISK WAS TESTED: {error}")
        yield
