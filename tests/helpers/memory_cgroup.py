"""A memory cgroup of a test's own; the test is skipped where none can be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from fault_injection.testbed import memory_cgroup as real
from fault_injection.testbed.memory_cgroup import MemoryCgroup
from fault_injection.testbed.unavailable import NotHere


@contextmanager
def memory_cgroup(name: str) -> Iterator[MemoryCgroup]:
    """Yields a cgroup as fault_injection.testbed.memory_cgroup does."""
    with ExitStack() as stack:
        try:
            cgroup = stack.enter_context(real.memory_cgroup(name))
        except NotHere as error:
            pytest.skip(str(error))
        yield cgroup
