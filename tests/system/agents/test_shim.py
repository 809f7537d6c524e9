"""The shim's promises: it leaves nothing behind, harms no other process, and only one of it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.shim import process
from agents.shim.main import Shim
from agents.shim.process_table import RECORD_VERSION, Child, Table, generation_of
from agents.shim.settings import parse
from fault_injection.testbed.nodes import Nodes, desire, kill, rank, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.shell.processes import is_running
from supervisor.wire import records, sockets
from supervisor.wire.records import ProcessRecord, decode
from tests.helpers import site

FIRST = "toy.0.1.0"


def test_the_shim_is_small_and_imports_nothing_big() -> None:
    code = (
        "import agents.shim.main, sys; print([m for m in ('pydantic', 'grpc', 'typer', 'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_its_records_are_process_records() -> None:
    assert records.VERSION == RECORD_VERSION
    child = Child(FIRST, 7, 8, "/x", warm=True, exit_code=3, exited=True)
    found = decode(json.dumps(child.record()), ProcessRecord)
    assert found == ProcessRecord(
        name=FIRST, pid=7, start_ticks=8, folder="/x", warm=True, exit_code=3, signal=None, exited=True, told=""
    )
    full = Child(FIRST, 7, 8, "/x", signal=9, exited=True, told="cut off", oom=False, ended_s=1.5)
    assert decode(json.dumps(full.record()), ProcessRecord).told == "cut off"
    assert set(full.record()) - {"$kind", "$version"} == {field.name for field in dataclasses.fields(ProcessRecord)}
    assert [generation_of(name) for name in (FIRST, "lighthouse.toy.4", "agent")] == [1, 4, None]


def test_a_record_of_an_older_shim_is_read(tmp_path: Path) -> None:
    """It lacks the fields that this version adds."""
    body = Child(FIRST, 7, 8, str(tmp_path), exit_code=3, exited=True).record()
    for name in ("told", "oom", "ended_s"):
        del body[name]
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / f"{FIRST}.json").write_text(json.dumps(body))
    table = Table(tmp_path)
    assert table.take_over() == []
    assert table.children[FIRST].exit_code == 3
    assert decode(json.dumps(body), ProcessRecord).told is None, "and an agent does not take it for a no"


@pytest.mark.parametrize(
    ("sent", "end", "told"),
    [
        ((), (None, 9), ""),
        ((9,), (None, 9), "because of 9"),
        ((15, 9), (None, 9), "because of 9"),
        ((15,), (None, 15), "because of 15"),
        ((15,), (143, None), "because of 15"),
        ((15,), (None, 9), ""),  # another process was faster
        ((15,), (None, 11), ""),
        ((10,), (None, 10), ""),  # no signal that must end it
    ],
)
def test_the_shim_says_which_ends_it_had_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: tuple[int, ...],
    end: tuple[int | None, int | None],
    told: str,
) -> None:
    monkeypatch.setattr(process, "signal_session", lambda *_: True)
    settings = parse(["--node=n0", f"--home={tmp_path}", "--etcd=127.0.0.1:1", "--cold"])
    settings.node_folder.mkdir(parents=True)
    shim = Shim(settings)
    shim._table.put(Child(FIRST, 2**22 + 1, 8, str(tmp_path)))
    for number in sent:
        assert shim._signal(FIRST, number, f"because of {number}")
    shim._ended(2**22 + 1, 8, *end)
    shim._records.ask(lambda: None).result(10)
    record = decode((settings.node_folder / "processes" / f"{FIRST}.json").read_bytes(), ProcessRecord)
    assert (record.exited, record.exit_code, record.signal, record.told) == (True, *end, told)
    assert record.oom is None, "it never ran"
    assert record.ended_s > 0.0


def test_what_finds_no_room_in_the_history_is_written_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An almost full disk takes a part of a line; a full one nothing. No line is lost, and none is torn by the next."""
    table, room, write = Table(tmp_path), [30], os.write

    def almost_full(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(file, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr("agents.shim.process_table.os.write", almost_full)
    table.remember("first")
    table.remember("second")
    assert (tmp_path / "shim.jsonl").stat().st_size == 30
    room[0] = 1 << 20
    table.remember("third")
    lines = [json.loads(line) for line in (tmp_path / "shim.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["first", "second", "third"]


def test_a_recycled_pid_is_never_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    stat = process.stat_of(sleeper.pid)
    assert not process.send_signal(stat.pid, stat.start_ticks - 1, signal.SIGKILL)
    assert not process.signal_session(stat.pid, stat.start_ticks - 1, signal.SIGKILL)
    assert not process.send_signal(0, 0, signal.SIGKILL)
    assert not process.send_signal(1, process.stat_of(1).start_ticks, signal.SIGKILL)
    assert sleeper.poll() is None
    assert is_running(stat.pid, stat.start_ticks)
    assert process.send_signal(stat.pid, stat.start_ticks, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL


def test_processes_that_may_not_be_seen_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' processes where /proc is mounted with hidepid=1, as on many clusters."""

    def guarded(path: str, *how: str) -> object:
        if path == "/proc/1/stat":
            raise PermissionError(1, "Operation not permitted")
        return open(path, *how)

    monkeypatch.setattr(process, "open", guarded, raising=False)
    assert process.stat_of(1) is None
    assert os.getpid() in {stat.pid for stat in process.all_processes()}


def test_leftovers_are_ended_and_others_who_have_their_numbers_are_not(
    nodes: Nodes, store: Store, sleeper: subprocess.Popen[bytes]
) -> None:
    folder = nodes.home / "nodes" / "n0"
    (folder / "processes").mkdir(parents=True)
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={process.NODE_DIR: str(folder)})
    try:
        stats = {"toy.0.1.0": process.stat_of(left.pid), "toy.1.1.0": process.stat_of(sleeper.pid)}
        for name, stat in stats.items():
            child = Child(name, stat.pid, stat.start_ticks, str(folder))
            (folder / "processes" / f"{name}.json").write_text(json.dumps(child.record()))
        node = nodes.cold()
        assert left.wait(10) == -signal.SIGKILL
        # it has the number and even the age of a record, but was never started for this node
        assert sleeper.poll() is None
        eventually(lambda: "killed toy.0.1.0" in node.output.read_text(), 5)
        # both generations are used up: an agent that still finds them wanted reports that, and begins neither again
        desire(store, "n0", trainer(0), trainer(1))
        for group in (0, 1):
            found = eventually(lambda g=group: rank(store, "n0", 1, g), 10)
            assert (found.state, found.exit.signal) == ("exited", signal.SIGKILL)
        desire(store, "n0", trainer(0, 2))
        running(store, node, 2)
    finally:
        left.kill()
        left.wait()


def test_a_stopped_shim_leaves_nobody(nodes: Nodes, store: Store) -> None:
    node = nodes.start("n0", "--grace-s=1")
    eventually(node.warm_ready, 15)
    desire(store, "n0", trainer(0, toy_child=True), trainer(1, toy_ignore_term=True))
    pids = [running(store, node, 1, group) for group in (0, 1)]
    child = int((node.folder / "ranks" / FIRST / "child").read_text())
    assert {child, *pids} <= {stat.pid for stat in node.left()}
    node.shim.send_signal(signal.SIGTERM)
    assert node.shim.wait(15) == 0
    assert node.left() == []
    # the agent reported how they ended before it went
    assert [rank(store, "n0", 1, group).exit.signal for group in (0, 1)] == [15, 9]


@pytest.mark.parametrize("warm", [True, False])
def test_a_killed_shim_takes_everybody_along(nodes: Nodes, store: Store, warm: bool) -> None:
    shell = {**site.OUTER_JOB, **site.PROXY, "NCCL_DEBUG": "WARN"}
    node = nodes.start(**shell) if warm else nodes.cold(**shell)
    if warm:
        eventually(node.warm_ready, 15)
    desire(store, "n0", trainer())
    running(store, node, 1)
    assert node.records()[FIRST].warm is warm
    theirs = Path(f"/proc/{node.pid(FIRST)}/environ").read_bytes().decode().split("\0")
    given = dict(entry.split("=", 1) for entry in theirs if entry)
    assert not site.OUTER_JOB.keys() & given.keys(), "what an outer job left is for no trainer"
    assert {"http_proxy", "NCCL_DEBUG"} <= given.keys()
    assert "127.0.0.1" in given["no_proxy"]
    assert "not passed on to what runs here: LOCAL_RANK" in node.output.read_text()
    kill(node.shim.pid)
    node.shim.wait()
    eventually(lambda: node.left() == [], 5)
    # the next one: that generation was used up, and its helpers that got away are found by their mark
    again = nodes.cold()
    found = eventually(lambda: (r := rank(store, "n0", 1)) and r.state == "exited" and r, 10)
    assert found.exit.signal == signal.SIGKILL
    desire(store, "n0", trainer(generation=2))
    running(store, again, 2)
    events = [line["event"] for line in again.history() if line.get("name") == FIRST]
    assert events == ["spawned", "leftover_gone"], "nobody saw its end"


def test_a_second_shim_is_refused(nodes: Nodes, store: Store) -> None:
    first = nodes.cold()
    eventually(lambda: first.pid("agent"), 10)
    second = nodes.cold()
    assert second.shim.wait(10) == 1
    assert f"another shim (pid {first.shim.pid}) runs this node" in second.output.read_text()
    assert first.shim.poll() is None


def test_a_home_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("in the way")
    arguments = ["--node=n0", f"--home={tmp_path}", "--etcd=127.0.0.1:1", "--cold"]
    done = subprocess.run([sys.executable, "-m", "agents.shim", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("supervisor-agent: cannot run node n0 in ")


def test_a_warm_process_that_dies_costs_a_cold_start(nodes: Nodes, store: Store) -> None:
    node = nodes.start()
    eventually(node.warm_ready, 15)
    warm = node.pid("warm")
    kill(warm)
    eventually(lambda: node.pid("warm") not in (0, warm), 10)
    desire(store, "n0", trainer())
    running(store, node, 1)
    assert os.getsid(node.pid(FIRST)) == node.pid(FIRST)


def test_an_exit_is_seen_when_descriptors_have_run_out(nodes: Nodes, store: Store) -> None:
    """Any process of this user may open the shim's socket as often as it likes."""
    node = nodes.start("n0", "--cold")
    desire(store, "n0", trainer())
    running(store, node, 1)
    pid = node.pid(FIRST)
    with contextlib.ExitStack() as held:
        used = len(os.listdir(f"/proc/{node.shim.pid}/fd"))
        resource.prlimit(node.shim.pid, resource.RLIMIT_NOFILE, (used + 3, used + 3))
        for _ in range(20):
            held.enter_context(sockets.connect(node.folder / "shim.sock", 5.0))
        eventually(lambda: len(os.listdir(f"/proc/{node.shim.pid}/fd")) == used + 3, 10, "none is left")
        kill(pid)
        seen = eventually(lambda: rank(store, "n0", 1).exit, 10)
    assert seen.signal == signal.SIGKILL
