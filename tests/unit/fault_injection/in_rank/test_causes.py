"""Orders reach the right rank, at their step and place; the effects of a rank's fault on itself are real."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import EVERY, EXIT, RAISE, Order, Orders, done_at, order, withdraw


def test_an_order_is_of_one_rank_of_one_generation_and_of_its_place(tmp_path: Path) -> None:
    causes.order(tmp_path, 1, 2, 0, Order(cause=causes.RAISE))
    for group, generation, rank in ((0, 2, 0), (1, 1, 0), (1, 2, 1)):
        assert Orders(tmp_path, group, generation, rank).due(causes.RAISE, step=1) is None
    orders = Orders(tmp_path, 1, 2, 0)
    assert orders.due(causes.SEGFAULT, causes.LOOP, step=1) is None
    assert causes.done_at(tmp_path, 1, 2, 0) is None
    assert orders.due(causes.SEGFAULT, causes.RAISE, step=1) == Order(cause=causes.RAISE)


def test_an_order_of_every_generation_holds_until_it_is_withdrawn(tmp_path: Path) -> None:
    order(tmp_path, 0, EVERY, 1, Order(cause=RAISE))
    assert Orders(tmp_path, 0, 3, 0).due(RAISE, step=1) is None, "another rank"
    for generation in (3, 4):
        assert Orders(tmp_path, 0, generation, 1).due(RAISE, step=1) is not None
        assert done_at(tmp_path, 0, generation, 1) is not None
    order(tmp_path, 0, 5, 1, Order(cause=EXIT))
    assert Orders(tmp_path, 0, 5, 1).due(RAISE, EXIT, step=1) == Order(cause=EXIT), "its own goes before"
    withdraw(tmp_path, 0, EVERY, 1)
    assert Orders(tmp_path, 0, 6, 1).due(RAISE, step=1) is None


def test_an_order_that_is_withdrawn_is_not_begun_and_goes_on_where_it_was(tmp_path: Path) -> None:
    orders = Orders(tmp_path, 0, 1, 0)
    order(tmp_path, 0, 1, 0, Order(cause=RAISE, at_step=5))
    assert orders.due(RAISE, step=4) is None, "it has been read"
    withdraw(tmp_path, 0, 1, 0)
    assert orders.due(RAISE, step=5) is None
    assert done_at(tmp_path, 0, 1, 0) is None
    order(tmp_path, 0, 1, 0, Order(cause=causes.SLOW))
    assert orders.due(causes.SLOW, step=6) is not None
    withdraw(tmp_path, 0, 1, 0)
    assert orders.due(causes.SLOW, step=7) is not None


def test_it_is_not_done_before_its_step_and_its_moment_is_noted_once(tmp_path: Path) -> None:
    orders = Orders(tmp_path, 0, 1, 0)
    assert orders.due(causes.SLOW, step=4) is None, "there is no order yet"
    causes.order(tmp_path, 0, 1, 0, Order(cause=causes.SLOW, at_step=5, seconds=2.0))
    assert orders.due(causes.SLOW, step=4) is None
    before = time.monotonic()
    wanted = orders.due(causes.SLOW, step=5)
    assert wanted is not None
    assert wanted.seconds == 2.0
    noted = causes.done_at(tmp_path, 0, 1, 0)
    assert noted is not None
    assert before <= noted <= time.monotonic()
    assert orders.due(causes.SLOW, step=6) == wanted
    assert causes.done_at(tmp_path, 0, 1, 0) == noted


@pytest.mark.parametrize(
    ("cause", "ends"),
    [
        (causes.SEGFAULT, -signal.SIGSEGV),
        (causes.ABORT, -signal.SIGABRT),
        (causes.EXIT, causes.EXIT_CODE),
        (causes.RAISE, 1),
    ],
)
def test_what_ends_a_rank(tmp_path: Path, cause: str, ends: int) -> None:
    assert suffers(tmp_path, cause, 20) == ends


@pytest.mark.parametrize("cause", [causes.LOOP, causes.HOLD_GIL, causes.BLOCK_DATA, causes.BLOCK_CHECKPOINT])
def test_what_holds_a_rank(tmp_path: Path, cause: str) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        suffers(tmp_path, cause, 0.5)


def suffers(folder: Path, cause: str, within_s: float) -> int:
    code = f"from fault_injection.in_rank import causes; from pathlib import Path; causes.suffer(causes.Order(cause={cause!r}), Path({str(folder)!r}))"
    return subprocess.run([sys.executable, "-c", code], timeout=within_s, check=False, capture_output=True).returncode
