"""A log of JSON lines, each with its subject."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest
from _pytest.capture import CaptureResult

from agents.agent.names import about as about_process
from supervisor.wire import logged
from supervisor.wire.logged import about

log = logging.getLogger("a.module")


@pytest.fixture(autouse=True)
def _root() -> Iterator[None]:
    """Keeps the tests' own handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)


def _written(capsys: pytest.CaptureFixture[str]) -> CaptureResult[str]:
    for handler in logging.getLogger().handlers:
        handler.flush()
    return capsys.readouterr()


def test_each_line_says_what_it_is_about(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(logged.VARIABLE, "json")
    logged.set_up()
    log.info(
        "%s: %s\nand %s", "run", "start", "more", extra=about(run="run", group=0, generation=2, incident="i1", node="")
    )
    log.warning("bare")
    first, second = (json.loads(line) for line in _written(capsys).err.splitlines())
    assert {k: v for k, v in first.items() if k != "t"} == {
        "level": "INFO", "logger": "a.module", "text": "run: start\nand more",
        "run": "run", "group": 0, "generation": 2, "incident": "i1",
    }  # fmt: skip
    assert set(second) == {"t", "level", "logger", "text"}


def test_a_traceback_is_in_its_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(logged.VARIABLE, "json")
    logged.set_up()
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("failed")
    (line,) = _written(capsys).err.splitlines()
    assert "KeyError: 'x'" in json.loads(line)["trace"]


@pytest.mark.parametrize("wanted", ["", "text"])
def test_by_default_it_is_text(
    wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(logged.VARIABLE, wanted)
    logged.set_up()
    log.info("started", extra=about(run="run"))
    assert _written(capsys).err.endswith(" INFO started\n")


def test_a_process_is_told_by_its_parts() -> None:
    assert about_process("run-2.1.3.0") == {"about": {"run": "run-2", "group": 1, "generation": 3, "rank": 0}}
    assert about_process("lighthouse.run.4") == {"about": {"run": "run", "generation": 4}}
    assert about_process("agent") == {}


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logged.VARIABLE, "xml")
    with pytest.raises(logged.LogFormatError, match="SUPERVISOR_LOG_FORMAT = 'xml': it must be text or json"):
        logged.set_up()


class Stalls(io.StringIO):
    """A stream that takes no line before it is set free."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.free.wait(30)
        return super().write(text)


def test_who_logs_does_not_wait_for_a_disk_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "LINES", 3)
    monkeypatch.setattr(logged, "LAST_WORDS_S", 0.01)
    disk = Stalls()
    handler = logged.NeverWaits(disk)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger("stalls")
    logger.addHandler(handler)
    try:
        for number in range(5):
            logger.warning("%d", number)
        handler.flush()
        assert disk.getvalue() == ""
    finally:
        disk.free.set()
    monkeypatch.setattr(logged, "LAST_WORDS_S", 10.0)
    handler.flush()
    assert disk.getvalue() == "0\n1\n2\n", "in order, and no more than are kept"
    logger.warning("and on")
    handler.flush()
    assert disk.getvalue().endswith("2\nand on\n")


def test_a_slip_in_what_is_logged_ends_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """The standard library's handlers do the same: another library may log with too few arguments."""
    logged.set_up()
    log.warning("%d", "no number")
    log.warning("and on")
    said = _written(capsys).err
    assert "Logging error" in said
    assert said.endswith("and on\n")


def test_who_has_logged_nothing_begins_no_thread_to_end() -> None:
    """At the end of a process no thread can be begun."""
    logged.set_up()
    before = threading.active_count()
    for handler in logging.getLogger().handlers:
        handler.flush()
    assert threading.active_count() == before
