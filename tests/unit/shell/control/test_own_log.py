"""The leader's log, as it gives it to a person elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.shell.control import own_log
from supervisor.shell.etcd.inbox import CannotDo, Job
from supervisor.wire.node_requests import LEADER, NodeRequest

LINES = (
    "2026-01-05 10:00:00,000 INFO a candidate for leadership",
    "2026-01-05 10:00:01,000 INFO leading, epoch 7",
    "Traceback (most recent call last):",
)


def given(log: Path | None, monkeypatch: pytest.MonkeyPatch, **wish: Any) -> list[str]:
    """Returns the lines of a process whose stderr goes to `log`; None: into a pipe."""
    read, write = os.pipe()
    descriptor = write if log is None else os.open(log, os.O_RDONLY)
    monkeypatch.setattr(own_log, "STDERR", Path(f"/proc/self/fd/{descriptor}"))
    request = NodeRequest(**{"node": LEADER, "what": "logs", "by": "", "limit_s": 20.0, **wish})
    try:
        first, *items = [i for i in own_log.answer(request, Job("i", request, time.monotonic() + 20.0)) if i]
    finally:
        for each in {read, write, descriptor}:
            os.close(each)
    assert first == {"path": str(log), "text": ""}
    return [item["text"] for item in items]


def test_its_newest_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "supervisor.log"
    log.write_text("".join(f"{line}\n" for line in LINES))
    assert given(log, monkeypatch) == [f"{line}\n" for line in LINES]
    assert given(log, monkeypatch, lines=1) == [f"{LINES[2]}\n"]
    assert given(log, monkeypatch, grep="epoch") == [f"{LINES[1]}\n"]
    assert given(log, monkeypatch, since_s=60.0) == []


def test_the_times_of_json_lines_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "supervisor.log"
    lines = [f'{{"t": {time.time() - ago:.3f}, "level": "INFO", "text": "{ago}"}}\n' for ago in (900, 30)]
    log.write_text("".join(lines))
    assert given(log, monkeypatch, since_s=60.0) == lines[1:]


def test_what_is_in_no_file_or_not_asked_of_it_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotDo, match=r"not in a file, but goes to pipe:.*journalctl"):
        given(None, monkeypatch)
    with pytest.raises(CannotDo, match="its log alone"):
        given(tmp_path, monkeypatch, what="exec")
