"""Signals that end a command which has broken something."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fault_injection.testbed.interrupts import finished_first, interruptible

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ALL}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may themselves run under nohup
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
def test_each_is_an_interrupt_also_where_it_did_nothing_before(number: signal.Signals) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_nohup_keeps_it_from_a_closed_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    went_on = []
    with interruptible(), finished_first():
        signal.raise_signal(signal.SIGHUP)
        went_on.append(True)
    assert went_on


def heal(done: list[str], *signals: signal.Signals) -> None:
    with interruptible(), finished_first():
        for number in signals:
            signal.raise_signal(number)
        done.append("healed")
        raise OSError("a link does not come up")


@pytest.mark.parametrize("first", ALL)
def test_the_first_is_raised_after_all_also_where_that_fails(first: signal.Signals) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        heal(done, first)
    assert done == ["healed"]


def test_a_second_one_is_raised_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        heal(done, signal.SIGHUP, signal.SIGINT)
    assert done == []
