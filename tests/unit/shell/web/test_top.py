"""`supervisor top`, in a terminal and into a pipe."""

from __future__ import annotations

import io
import re
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.web.top import _word, top
from tests.helpers.terminal import IN, terminal
from tests.helpers.told import ToldWorld

GREEN = "\x1b[1;32m"
ROOT = str(Path(__file__).parents[4])

SCRIPT = """
import signal, sys
from rich.console import Console
from supervisor.shell import signals
from supervisor.shell.web.top import _word, top
from tests.helpers.told import ToldWorld
world = ToldWorld(groups=3, ranks=2)
world.lead(); world.bring_up(); world.train(5)
signal.signal(signal.SIGUSR1, lambda *_: setattr(world.store, "away", not world.store.away))
signal.signal(signal.SIGUSR2, lambda *_: world.train(world.step + 1))
with signals.ended_by_signals():
    top(world.store, sys.argv[1], Console())
print("after it")
"""


def child(run: str = "") -> list[str]:
    return [sys.executable, "-c", SCRIPT, run]


def told() -> ToldWorld:
    world = ToldWorld(groups=3, ranks=2)
    world.lead()
    world.bring_up()
    world.train(5)
    return world


def printed(run: str = "", world: ToldWorld | None = None, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    top((world or told()).store, run, Console(file=file))
    file.flush()
    return file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_into_a_pipe_it_is_printed_once_and_nothing_is_cut() -> None:
    text = printed()
    assert re.match(
        r"run run  snapshot at \d\d:\d\d:\d\d \w+: a stop of the steps shows only in a live `top` or page\n", text
    )
    assert "Training: all 3 groups step.\nNo one needs to act.\n" in text
    assert "\x1b" not in text
    assert "   2  ✓✓  healthy   n3      generation 1  step 5\n" in text
    assert printed("run").splitlines()[1:] == text.splitlines()[1:]


def test_where_there_are_no_other_characters() -> None:
    world = told()
    world.fail(1, error="ValueError: ✗")
    world.tell()
    assert "   1  x+  dead" in printed(world=world, encoding="ascii")


def test_no_run_no_such_run_and_no_etcd() -> None:
    with pytest.raises(Fatal, match="there is no run yet"):
        printed(world=ToldWorld(groups=1))
    with pytest.raises(Fatal, match="there is no run 'other'; known: run"):
        printed("other")
    world = told()
    world.store.away = True
    with pytest.raises(Retryable):
        printed(world=world)


def test_where_nothing_can_be_drawn_it_is_printed_once() -> None:
    file = io.StringIO()
    top(told().store, "", Console(file=file, force_terminal=True, _environ={"TERM": "dumb"}))
    assert "Training: all 3 groups step." in file.getvalue()
    assert IN not in file.getvalue()


def test_it_is_live_fits_and_leaves_the_terminal_as_it_was() -> None:
    with terminal(child(), PYTHONPATH=ROOT) as shown:
        screen = shown.shows("step 5 ")
        assert re.match(r"run run +live \d\d:\d\d:\d\d \w+$", screen[0])
        assert screen[1].rstrip() == "Training: all 3 groups step."
        assert screen[2].rstrip() == "No one needs to act."
        assert max(map(len, screen)) <= 80
        assert len(screen) <= 24
        assert GREEN in shown.wrote
        shown.process.send_signal(signal.SIGUSR2)
        shown.shows("step 6 ")
        shown.resize(40, 10)

        def narrow() -> bool:
            rows = shown.screen()
            return len(rows) == 10 and max(map(len, rows)) <= 40

        eventually(narrow, 10.0, "it follows the size")
        assert shown.ended(signal.SIGINT) == 0
        assert shown.wrote.rstrip().endswith("after it")


def test_without_colour() -> None:
    with terminal(child(), width=132, height=50, PYTHONPATH=ROOT, NO_COLOR="1") as shown:
        assert any(len(row.rstrip()) > 80 for row in shown.shows("step 5 ")), "a wide one is used"
        assert not re.search(r"\x1b\[[\d;]*3\d", shown.wrote)
        assert shown.ended(signal.SIGHUP) == 0


def test_while_etcd_is_away_it_says_since_when_and_goes_on_after_it() -> None:
    with terminal(child("run"), PYTHONPATH=ROOT) as shown:
        shown.shows("step 5 ")
        shown.process.send_signal(signal.SIGUSR1)
        screen = shown.shows("! etcd has not answered since ")
        assert any(
            re.search(r"since \d\d:\d\d:\d\d \(\d+(\.\d)? s\): this is the state of that time", row) for row in screen
        )
        assert re.match(r"run run +no update from etcd since \d\d:\d\d:\d\d$", screen[0])
        assert any("step 5 " in row for row in screen)
        shown.process.send_signal(signal.SIGUSR1)
        shown.process.send_signal(signal.SIGUSR2)
        back = shown.shows("step 6 ")
        assert not any("etcd has not answered" in row for row in back)
        assert shown.ended(signal.SIGTERM) == 0


def test_when_nothing_is_told_any_more_the_picture_says_so() -> None:
    told = {"now": 1_700_000_000.0, "every_s": 2.0, "store_since": 0.0}
    assert not _word(told, 9.9).lost
    assert _word(told, 9.9).text.startswith("live ")
    assert _word(told, 12.0).lost
    assert re.fullmatch(r"no update since 2023-11-1\d \d\d:\d\d:\d\d \(12 s\)", _word(told, 12.0).text)
