"""A node whose disk is slow, or takes reads alone: no process counts as frozen or silent for it, and nothing is
lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from agents.agent.file_poller import GATE_FROZEN_S, FrozenGates
from agents.agent.main import Agent
from agents.agent.reporter import Callbacks, Reporter
from agents.agent.shim_client import ShimClient
from agents.shim import process
from agents.shim.main import Refusal, Shim
from agents.shim.process_table import Child
from agents.shim.settings import Settings, parse
from supervisor.wire.records import ExitObserved, ProcessRecord, Progress, Registration, TrainerObserved, encode

NAME = "toy.0.1.0"
GATE = "lighthouse.toy.1"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = parse(["--node=n0", f"--home={tmp_path}", "--etcd=127.0.0.1:1", "--cold"])
    (made.node_folder / "ranks" / NAME).mkdir(parents=True)
    return made


def ended(settings: Settings, ends: Callable[[Agent], object]) -> ExitObserved:
    """The exit that the agent reports of a rank that raised, after `ends`."""

    async def tell() -> ExitObserved:
        agent = Agent(settings, None)  # type: ignore[arg-type]
        folder = settings.node_folder / "ranks" / NAME
        (folder / "error.json").write_text(json.dumps({"message": "RuntimeError: a bug"}))
        record = ProcessRecord(name=NAME, pid=os.getpid(), start_ticks=1, folder=str(folder))
        agent._view.put(record)
        ends(agent)
        await agent._ended(replace(record, exited=True, exit_code=1))
        (end,) = [trainer.exit for trainer in agent._view.observed().trainers]
        assert end is not None
        return end

    return asyncio.run(tell())


def test_an_end_does_not_wait_for_what_is_written_for_a_start(settings: Settings) -> None:
    """Eight ranks' files on a disk that takes a second and a half for each."""
    written = threading.Event()
    try:
        end = ended(settings, lambda agent: agent._files.ask(lambda: written.wait(30)))
    finally:
        written.set()
    assert (end.error_file, end.disk) == ("RuntimeError: a bug", "")


def test_one_that_has_finished_is_told_as_finished_though_no_look_has_seen_it(settings: Settings) -> None:
    """The newest look began before the rank wrote that it had finished, and is not over."""

    async def tell() -> TrainerObserved:
        agent, answers = Agent(settings, None), threading.Event()  # type: ignore[arg-type]
        folder = settings.node_folder / "ranks" / NAME
        record = ProcessRecord(name=NAME, pid=os.getpid(), start_ticks=1, folder=str(folder))
        said = Progress(run="toy", group=0, generation=1, rank=0, pid=1, sequence=7, phase="step", step=9, commits=9)
        (folder / "progress.json").write_bytes(encode(said))
        agent._view.put(record)
        assert await agent._looks.look(1.0) == [NAME]
        agent._files.ask(lambda: answers.wait(30))
        try:
            (folder / "progress.new").write_bytes(encode(replace(said, sequence=8, phase="finished")))
            (folder / "progress.new").replace(folder / "progress.json")
            await agent._ended(replace(record, exited=True, exit_code=0))
        finally:
            answers.set()
        (told,) = agent._view.observed().trainers
        await agent._looks.look(2.0)
        assert agent._view.observed().trainers == (told,), "an older look takes nothing of it back"
        return told

    told = asyncio.run(tell())
    assert (told.state, told.progress is not None and told.progress.phase) == ("exited", "finished")


def test_an_end_is_told_whatever_it_left_behind(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(agent: Agent) -> None:
        def decode(record: ProcessRecord) -> ExitObserved:
            raise RecursionError("an error file of ten thousand brackets")

        agent._view.decode = decode  # type: ignore[method-assign]

    end = ended(settings, breaks)
    assert (end.exit_code, end.error_file, end.disk) == (1, "", "")
    assert f"what {NAME} left behind cannot be read" in caplog.text


def test_a_start_whose_record_is_written_when_the_node_has_been_told_to_stop_is_none(settings: Settings) -> None:
    async def stops() -> None:
        shim = Shim(settings)
        request = {"name": NAME, "folder": str(settings.node_folder / "ranks" / NAME), "env": {}, "argv": ["/bin/true"]}
        spawning = asyncio.create_task(shim._spawn_once(request | {"log": f"{request['folder']}/output.log"}))
        while NAME not in shim._table.children:
            await asyncio.sleep(0)
        shim._stop.set()  # its record is on its way
        with pytest.raises(Refusal, match="this node is stopping"):
            await spawning
        assert NAME not in shim._table.children, "its name is not used up"
        await shim._records.done(lambda: None)
        assert list((settings.node_folder / "processes").iterdir()) == []

    asyncio.run(stops())


class Disk:
    """The disk of a gate's agent, which looks five times a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frozen, self.awake = FrozenGates(folder), 0.0
        self.touches, self.wrong, self.asked = threading.Event(), False, 0
        monkeypatch.setattr("agents.agent.file_poller.os.utime", self._utime)

    def _utime(self, path: Path) -> None:
        self.asked += 1
        self.touches.wait(30)
        if self.wrong:
            raise OSError(30, "Read-only file system")

    def look(self, still_s: float) -> dict[str, float]:
        self.awake += 0.1
        found = self.frozen.look({GATE: still_s}, self.awake)
        self.settle()
        return found

    def settle(self) -> None:
        if self.touches.is_set():
            self.frozen._aside.ask(lambda: None).result(10)

    def stands_still(self, until_s: float) -> float | None:
        """The time at which the gate was found frozen; None: it was not."""
        return next((tenth / 10 for tenth in range(int(10 * until_s)) if self.look(tenth / 10)), None)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def test_a_gate_that_does_not_touch_its_file_is_frozen(disk: Disk) -> None:
    disk.touches.set()
    assert disk.stands_still(10.0) == pytest.approx(GATE_FROZEN_S + 0.1, abs=0.11)
    assert disk.asked == 1


def test_a_gate_whose_disk_takes_no_touch_is_not_frozen(disk: Disk) -> None:
    """A disk frozen for a snapshot, or with a full journal, can still be read."""
    try:
        assert disk.stands_still(60.0) is None
        disk.touches.set()
        disk.settle()
        assert disk.look(60.1) == {}
        assert disk.look(0.0) == {}, "it was touched once the disk took that"
    finally:
        disk.touches.set()


def test_a_gate_that_stays_still_once_its_disk_takes_a_touch_is_frozen(disk: Disk) -> None:
    assert disk.stands_still(10.0) is None
    disk.touches.set()
    disk.settle()
    late = next(tenth for tenth in range(100) if disk.look(10.0 + tenth / 10))
    assert late / 10 == pytest.approx(GATE_FROZEN_S / 2, abs=0.21)


def test_a_read_only_disk_says_nothing_of_a_gate(disk: Disk) -> None:
    disk.wrong = True
    disk.touches.set()
    assert disk.stands_still(60.0) is None


def test_what_is_to_be_ended_does_not_wait_for_a_start(settings: Settings, sleeper: subprocess.Popen[bytes]) -> None:
    """The disk stalls in the middle of a start, when the agent has asked the shim for it."""

    async def asks() -> None:
        shim, answers = Shim(settings), threading.Event()
        path = settings.node_folder / "shim.sock"
        server = await asyncio.start_unix_server(shim._serve, path=path)
        client = await ShimClient.connect(path)
        stat = process.stat_of(sleeper.pid)
        assert stat is not None
        shim._table.put(Child(NAME, sleeper.pid, stat.start_ticks, str(settings.node_folder)))
        shim._records.ask(lambda: answers.wait(30))
        request = {"name": "toy.1.1.0", "folder": str(settings.node_folder / "ranks" / "toy.1.1.0"), "env": {}}
        request |= {"argv": ["/bin/true"], "log": f"{request['folder']}/output.log"}
        spawning = asyncio.create_task(client.ask("spawn", **request))
        try:
            await asyncio.sleep(0)
            await asyncio.wait_for(client.ask("signal", name=NAME, signal=9, why="it is to end"), 10.0)
            assert not spawning.done()
        finally:
            answers.set()
        started = (await spawning)["process"]
        assert (started["name"], started["pid"] > 0) == ("toy.1.1.0", True)
        os.waitpid(started["pid"], 0)
        for line in (client._requests, client._starts):
            line._writer.close()
            await line._writer.wait_closed()
        server.close()
        await asyncio.sleep(0)

    asyncio.run(asks())
    assert sleeper.wait(10) == -9


class Etcd:
    """An etcd that takes every write."""

    def __init__(self) -> None:
        self.leases = 0

    def get(self, key: str) -> None:
        return None

    def lease(self, seconds: int) -> SimpleNamespace:
        self.leases += 1
        return SimpleNamespace(id=self.leases, lost=False)

    def commit(self, puts: object, **about: object) -> int:
        return 1


def test_a_node_registers_again_while_its_disk_stalls(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease was lost, as every lease is in a long enough hiccup of etcd."""
    monkeypatch.setattr("agents.agent.reporter.MARKED_WITHIN_S", 0.01)
    registration = Registration(
        node="n0", address="127.0.0.1", role="trainer", allocation="", slots=1, agent_pid=1, version="1"
    )
    reporter, etcd, answers = (
        Reporter(registration, settings.node_folder, ("h:1",), 5, Callbacks()),
        Etcd(),
        threading.Event(),
    )
    reporter._disk.ask(lambda: answers.wait(30))
    try:
        for lease in (1, 2):
            reporter._register(etcd)  # type: ignore[arg-type]
            assert reporter._own_last_lease() == lease
        assert reporter.standing.registered
    finally:
        answers.set()
    reporter._disk.end(10.0)
    assert json.loads((settings.node_folder / "lease.json").read_text()) == {"lease": 2}
