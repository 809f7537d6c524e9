"""Each kind of request is done for the right ranks, and nothing in it is trusted but its fields."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.requests import stacks
from agents.requests.asked import Asked
from supervisor.shell.etcd.inbox import CannotDo, Job
from supervisor.wire.node_requests import NodeRequest
from supervisor.wire.records import ProcessRecord


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    code = "import time\ndef waits():\n    print('here', flush=True)\n    time.sleep(600)\nwaits()\n"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "MINE": "1"}
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        yield child
        child.kill()


def record(name: str, folder: Path, pid: int = 0, exited: bool = False) -> ProcessRecord:
    return ProcessRecord(name=name, pid=pid, start_ticks=1, folder=str(folder), exited=exited)


def do(folder: Path, *records: ProcessRecord, said: list[str] | None = None, **wish: Any) -> list[dict[str, Any]]:
    asked = Asked(folder, lambda: records, (said if said is not None else []).append)
    request = NodeRequest(**{"node": "n1", "by": "ann@desk", "limit_s": 20.0, "run": "run", **wish})
    return [item for item in asked(request, Job("i", request, time.monotonic() + 20.0)) if item]


def test_a_command_on_the_node_is_in_its_folder_and_both_logs_say_who_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    found = do(tmp_path, said=said, what="exec", command=("pwd",))
    assert found == [{"stream": "stdout", "text": f"{tmp_path}\n"}, {"code": 0}]
    assert said == ["ann@desk runs a command on this node: pwd"]
    assert said[0] in caplog.text


def test_a_command_for_a_rank_is_in_its_folder_and_environment(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    old = record("run.1.1.0", tmp_path / "old", exited=True)
    (tmp_path / "new").mkdir()
    found = do(
        tmp_path, old, record("run.1.2.0", tmp_path / "new", sleeper.pid), what="exec", group=1, rank=0,
        command=("sh", "-c", "echo $MINE; pwd"),
    )  # fmt: skip
    assert "".join(item.get("text", "") for item in found) == f"1\n{tmp_path / 'new'}\n"


def test_a_rank_that_does_not_run_there_is_named(tmp_path: Path) -> None:
    for group in (1, 2):
        with pytest.raises(CannotDo, match=f"rank 0 of group {group} of run run does not run there"):
            do(tmp_path, record("run.1.1.0", tmp_path, exited=True), what="exec", group=group, rank=0, command=("pwd",))


def test_the_stack_of_each_running_rank(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (main,) = [
        item
        for item in do(
            tmp_path,
            record("run.0.1.0", tmp_path, exited=True), record("run.0.2.0", tmp_path, sleeper.pid),
            record("other.0.1.0", tmp_path, sleeper.pid), record("lighthouse.run.1", tmp_path, sleeper.pid),
            what="stacks",
        )
        if item["main"]
    ]  # fmt: skip
    assert [frame["function"] for frame in main["frames"]] == ["waits", "<module>"]
    assert (main["run"], main["group"], main["generation"], main["rank"]) == ("run", 0, 2, 0)


def test_a_rank_whose_stack_is_not_known_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone,) = do(tmp_path, record("run.0.1.0", tmp_path, 2**22 + 1), what="stacks")
    assert gone["unknown"]
    monkeypatch.setattr(stacks.stack_dump, "threads_of", lambda pid: time.sleep(5))
    monkeypatch.setattr(stacks.stack_dump, "GIVEN_UP_S", 0.2)
    (mute,) = do(tmp_path, record("run.0.1.0", tmp_path, 1), what="stacks")
    assert mute["unknown"] == "py-spy does not end"
