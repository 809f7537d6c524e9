"""Work that is done aside, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from supervisor.wire.aside import Aside


def test_it_is_done_in_order_and_nobody_waits() -> None:
    aside, free, done = Aside("a test"), threading.Event(), list[int]()
    assert aside.left == 0
    aside.ask(lambda: free.wait(30))
    last = [aside.ask(lambda n=n: done.append(n)) for n in range(3)][-1]
    assert (done, aside.left) == ([], 4)
    free.set()
    last.result(10)
    assert (done, aside.left) == ([0, 1, 2], 0)


def test_what_goes_wrong_is_for_whoever_asked_alone() -> None:
    aside = Aside("a test")

    def wrong() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        aside.ask(wrong).result(10)
    assert aside.ask(lambda: 7).result(10) == 7


def test_what_comes_to_no_end_is_not_waited_for_and_not_given_up() -> None:
    aside, free = Aside("a test"), threading.Event()

    async def ask() -> tuple[bool | None, int]:
        late = await aside.within(0.01, lambda: free.wait(30))
        free.set()
        return late, await aside.done(lambda: 7)

    assert asyncio.run(ask()) == (None, 7)


def test_what_is_not_wanted_any_more_is_left_out() -> None:
    aside, free, done = Aside("a test"), threading.Event(), list[int]()
    aside.ask(lambda: free.wait(30))
    assert aside.ask(lambda: done.append(1)).cancel()
    free.set()
    aside.ask(lambda: None).result(10)
    assert (done, aside.left) == ([], 0)
