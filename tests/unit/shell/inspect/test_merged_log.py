"""All ranks' logs as one, with the events of the ranks in their places."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.cli import logs as look
from supervisor.core.model.spec import GroupsSpec, RunSpec
from supervisor.shell.inspect.merged_log import Entry, Joined, render
from supervisor.wire import keys, log_follower, node_logs
from supervisor.wire.records import RunRecord, encode
from tests.unit.shell.records import SPEC

T = 1_700_000_000.0


def stamp(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t)) + f",{round(t % 1 * 1000):03d}"


class Machine:
    """A home with the files that agents and trainers leave; `run` is the run's folder."""

    def __init__(self, home: Path) -> None:
        self.home, self.system, self.run = home, home / ".supervisor", home / "run"
        self.run.mkdir(parents=True)

    def log(self, node: str, group: int, generation: int, rank: int, *lines: str, end: str = "\n") -> None:
        path = self.system / "nodes" / node / "ranks" / f"run.{group}.{generation}.{rank}" / "output.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("\n".join(lines) + end)

    def shim(self, node: str, t: float, event: str, name: str, **about: Any) -> None:
        path = self.system / "nodes" / node / "shim.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({"t": T + t, "event": event, "name": name, "pid": 7, **about}) + "\n")

    def incident(self, t: float, state: str, group: int = 1, rung: int = 1) -> None:
        about: dict[str, Any] = {
            "id": "i1",
            "kind": "crash",
            "group": group,
            "node": "n2",
            "rung": rung,
            "generation_after": 2,
        }
        about["reason"] = {"code": "text", "about": {"text": "it ended"}}  # as the journal has it
        line = {"t": T + t, "entry": "intent", "incidents": [{**about, "state": state}]}
        with (self.run / "journal.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def joined(self, **about: Any) -> Joined:
        return Joined(self.system, "run", self.run, **about)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Group 1 has two ranks on two nodes; rank 1 crashes at 5, both start again at 6."""
    m = Machine(tmp_path)
    for rank, node in ((0, "n1"), (1, "n2")):
        m.shim(node, 1.0, "spawned", f"run.1.1.{rank}")
    m.log(
        "n1",
        1,
        1,
        0,
        f"[titan] {stamp(T + 2.0)} - root - INFO - step 1",
        f"[titan] {stamp(T + 4.0)} - root - INFO - step 2",
    )
    m.log(
        "n2",
        1,
        1,
        1,
        f"[titan] {stamp(T + 3.0)} - root - INFO - step 1",
        "Fatal Python error: Segmentation fault",
        "  File x",
    )
    m.shim("n2", 5.0, "exited", "run.1.1.1", exit_code=None, signal=11, oom=False, told="")
    m.incident(5.1, "acting")
    m.shim("n1", 5.2, "exited", "run.1.1.0", exit_code=None, signal=9, told="its generation is over")
    m.shim("n1", 6.0, "spawned", "run.1.2.0")
    m.log("n1", 1, 2, 0, f"[titan] {stamp(T + 7.0)} - root - INFO - step 2 again")
    m.incident(8.0, "recovered")
    m.log("n1", 0, 1, 0, f"[titan] {stamp(T + 2.5)} - root - INFO - another group")
    m.log("n1", 1, 2, 0, f"[titan] {stamp(T + 9.0)} - root - INFO - step 3")
    return m


def test_all_ranks_and_generations_are_one_log_with_the_crash_in_its_place(machine: Machine) -> None:
    told = [render(e)[12:] for e in machine.joined(group=1).new()]
    assert [t.split("- ")[-1] if "titan" in t else t for t in told] == [
        "---- group 1 generation 1 rank 0 on n1 starts (pid 7)",
        "---- group 1 generation 1 rank 1 on n2 starts (pid 7)",
        "step 1",
        "step 1",
        "g1.gen1.r1 | Fatal Python error: Segmentation fault",
        "g1.gen1.r1 |   File x",
        "step 2",
        "==== group 1 generation 1 rank 1 on n2 ended by SIGSEGV (signal 11)",
        "**** group 1: incident i1 acting: crash, rung 1: it ended",
        "==== group 1 generation 1 rank 0 on n1 ended by SIGKILL (signal 9): its generation is over",
        "---- group 1 generation 2 rank 0 on n1 starts (pid 7)",
        "step 2 again",
        "**** group 1: incident i1 recovered: crash, rung 1: it ended",
        "step 3",
    ]


def test_times_are_utc_as_those_of_incidents_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        entry = Entry(t=3600.25, what="line", run="r", group=1, generation=2, rank=0, node="n1", incident="", text="x")
        assert render(entry) == "01:00:00.2Z g1.gen2.r0 | x"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_each_line_names_the_incident_that_was_open(machine: Machine) -> None:
    found = {e.text.split("- ")[-1]: e.incident for e in machine.joined(group=1).new() if e.what == "line"}
    assert (found["step 1"], found["step 2 again"], found["step 3"]) == ("", "i1", "")


def test_only_what_is_asked_for(machine: Machine) -> None:
    assert {e.group for e in machine.joined().new()} == {0, 1}
    assert {(e.group, e.rank) for e in machine.joined(group=1, rank=1).new() if e.rank is not None} == {(1, 1)}
    assert machine.joined(group=7).new() == []
    assert Joined(machine.system, "ru", machine.home / "ru").new() == []


def test_what_comes_later_is_told_once(machine: Machine) -> None:
    log = machine.joined(group=1)
    assert log.empty
    log.new()
    assert not log.empty
    assert log.new() == []
    machine.log("n1", 1, 2, 0, f"{stamp(T + 10)} one")
    machine.shim("n3", 11.0, "spawned", "run.1.3.0")
    machine.log("n3", 1, 3, 0, f"{stamp(T + 12)} two")
    assert [e.text.split()[-1] for e in log.new()] == ["one", "7)", "two"]
    assert log.new() == []


def test_a_line_that_is_still_being_written_waits_until_it_is_whole_or_its_process_has_ended(machine: Machine) -> None:
    log = machine.joined(group=1)
    log.new()
    machine.log("n1", 1, 2, 0, "loss is", end="")
    assert log.new() == []
    machine.log("n1", 1, 2, 0, " nan")
    assert [e.text for e in log.new()] == ["loss is nan"]
    machine.log("n1", 1, 2, 0, "killed in the mid", end="")
    machine.shim("n1", 20.0, "exited", "run.1.2.0", exit_code=None, signal=9, oom=True)
    assert [e.text for e in log.new()] == [
        "killed in the mid",
        "ended by SIGKILL (signal 9), killed by the kernel for memory",
    ]


def test_what_ended_with_its_machine_has_its_last_words_and_its_place(machine: Machine) -> None:
    """No process is left there to report the end: another generation of the group begins elsewhere."""
    log = machine.joined(group=1)
    log.new()
    machine.log("n1", 1, 2, 0, f"{stamp(T + 15)} last words", end="")
    assert log.new() == []
    machine.shim("n3", 16.0, "spawned", "run.1.3.0")
    machine.log("n3", 1, 3, 0, f"{stamp(T + 17)} first words")
    assert [e.text.split()[-2] for e in log.new()] == ["last", "(pid", "first"]
    machine.shim("n1", 90.0, "leftover_gone", "run.1.2.0")
    assert [(e.generation, e.what, e.text) for e in log.new()] == [(2, "end", node_logs.GONE)]


def test_a_shim_that_killed_what_was_left_tells_of_the_end(machine: Machine) -> None:
    machine.shim("n1", 90.0, "leftover_killed", "run.1.2.0")
    assert [e.text for e in machine.joined(group=1).new() if e.what == "end"][-1] == "ended"


def test_a_log_that_somebody_has_emptied_is_read_from_its_beginning(machine: Machine) -> None:
    log = machine.joined(group=1)
    log.new()
    machine.log("n1", 1, 2, 0, "half a line", end="")
    assert log.new() == []
    (machine.system / "nodes" / "n1" / "ranks" / "run.1.2.0" / "output.log").write_text("")
    assert log.new() == []
    machine.log("n1", 1, 2, 0, "it crashes")
    assert [e.text for e in log.new()] == ["it crashes"]


def test_a_time_that_a_line_speaks_of_is_not_its_own(machine: Machine) -> None:
    log = machine.joined(group=1)
    log.new()
    lines = [
        f"[rank0]: [titan] {stamp(T + 20)} one",
        f"loaded the checkpoint of {stamp(T - 86400)}",
        "unstamped",
        f"{stamp(T + 19.9)} its clock was set back",
        f"{stamp(time.time() + 1e6)} or far ahead",
        "last",
    ]
    before = time.time()
    machine.log("n1", 1, 2, 0, *lines)
    found = log.new()
    assert [e.text for e in found] == lines
    assert [e.t for e in found[:4]] == [pytest.approx(T + 20)] * 4
    assert all(before <= e.t <= time.time() for e in found[4:])


def test_a_line_without_a_time_is_at_its_ranks_start(machine: Machine) -> None:
    path = machine.system / "nodes" / "n4" / "ranks" / "run.6.1.0"
    machine.shim("n4", 50.0, "spawned", "run.6.1.0")
    machine.log("n4", 6, 1, 0, "no time yet")
    (path / "launch.json").write_text("{}")
    os.utime(path / "launch.json", (T + 49.9, T + 49.9))
    machine.shim("n4", 49.9, "exited", "run.6.1.0", exit_code=1)
    assert [(e.what, round(e.t - T, 1)) for e in machine.joined(group=6).new()] == [
        ("line", 49.9), ("end", 49.9), ("start", 50.0),
    ], "and before the end, also at the same time"  # fmt: skip


def test_an_incident_is_told_when_it_changes_and_a_halt_ends_it(machine: Machine) -> None:
    log = machine.joined(group=1)
    log.new()
    for t, state in ((30.0, "acting"), (31.0, "acting"), (32.0, "halted"), (33.0, "halted")):
        machine.incident(t, state)
    machine.log("n1", 1, 2, 0, f"{stamp(T + 31.5)} while", f"{stamp(T + 40)} after")
    found = [(e.text.split()[2] if e.what == "incident" else e.text.split()[-1], e.incident) for e in log.new()]
    assert found == [("acting:", "i1"), ("while", "i1"), ("halted:", "i1"), ("after", "")]


def test_of_a_long_log_only_the_end_is_read_at_first(machine: Machine) -> None:
    machine.log("n9", 5, 1, 0, *(f"line {n}" for n in range(10_000)))
    found = [e.text for e in machine.joined(group=5, most=1000).new()]
    assert 50 < len(found) < 120
    assert found[-1] == "line 9999"
    assert all(text.startswith("line ") for text in found)


def test_what_is_no_line_of_ours_is_passed_over(machine: Machine) -> None:
    before = len(machine.joined().new())
    with (machine.system / "nodes" / "n1" / "shim.jsonl").open("a") as file:
        file.write('{"t":\nnull\n{"t":"x","event":"exited","name":"run.1.2.0"}\n')
    (machine.system / "nodes" / "n1" / "ranks" / "run.x").mkdir()
    (machine.system / "nodes" / "n1" / "ranks" / "run.x" / "output.log").write_text("x\n")
    assert len(machine.joined().new()) == before


@pytest.mark.parametrize(
    ("exit_", "said"),
    [
        ({"exit_code": 0, "signal": None}, "ended with exit code 0"),
        ({"exit_code": 1, "signal": None}, "ended with exit code 1"),
        ({"exit_code": None, "signal": 250}, "ended by a signal (signal 250)"),
        ({}, "ended"),
    ],
)
def test_each_end_has_its_words(machine: Machine, exit_: dict[str, Any], said: str) -> None:
    machine.shim("n4", 30.0, "exited", "run.4.1.0", **exit_)
    assert [e.text for e in machine.joined(group=4).new()] == [said]


# --- the command ---


def follow(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *arguments: str, spec: RunSpec = SPEC
) -> tuple[int, str, str]:
    """The output of a follower that is interrupted after it has looked twice."""
    looks = iter([lambda: machine.log("n1", 1, 2, 0, f"{stamp(T + 40)} it came later")])

    class Event:
        def wait(self, timeout: float) -> None:
            assert timeout in (look.FOLLOW_S, look.ASK_S)
            try:
                next(looks)()
            except StopIteration:
                raise KeyboardInterrupt from None

    store = MemoryStore()
    record = RunRecord(spec=spec, run_dir=str(machine.run), launched_unix_s=0.0)
    store.put(keys.spec("run"), encode(record))
    monkeypatch.setattr(common, "connect", lambda *_, **__: store)
    monkeypatch.setattr(look.threading, "Event", Event)
    options = ["--run", "run", "--etcd", "127.0.0.1:1", "--home", str(machine.home)]
    result = CliRunner().invoke(cli.app, ["logs", *arguments, *options])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_follows_until_it_is_interrupted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = follow(machine, monkeypatch, "-f", "--group", "1", "-n", "3")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 4
    assert "step 2 again" in lines[0]
    assert "**** group 1: incident i1 recovered" in lines[1]
    assert lines[3].endswith("it came later")


def test_a_follower_shows_what_has_the_text_and_is_new_enough(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = follow(machine, monkeypatch, "-f", "--grep", "step 2")
    assert (code, [line.rpartition("- ")[2] for line in out.splitlines()]) == (0, ["step 2", "step 2 again"])
    assert follow(machine, monkeypatch, "-f", "--since", "1h") == (0, "", ""), "all is of 2023"


def test_as_json_each_line_says_whose_it_is(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = follow(machine, monkeypatch, "--follow", "--json", "-n", "100", "--group", "1")
    bodies = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {tuple(sorted(b)) for b in bodies} == {
        ("generation", "group", "incident", "node", "over", "rank", "run", "t", "text", "what")
    }
    (crash,) = [b for b in bodies if "SIGSEGV" in b["text"]]
    assert (crash["run"], crash["group"], crash["generation"], crash["rank"], crash["node"]) == ("run", 1, 1, 1, "n2")


def test_there_is_nothing_to_follow_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = follow(Machine(tmp_path), monkeypatch, "-f")
    assert (code, out) == (0, "")
    assert err == "supervisor: no node has a log of run run yet: this goes on until one has\n"


@pytest.mark.parametrize("more", [(), ("-f",)])
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--group", "9"), "supervisor: run run has no group 9: it has 0 to 1"),
        (("--group", "-1"), "supervisor: run run has no group -1: it has 0 to 1"),
        (("--rank", "7"), "supervisor: a group of run run has no rank 7: it has 0 to 0"),
    ],
)
def test_a_group_or_a_rank_that_the_run_has_not_is_said_to_be_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], said: str, more: tuple[str, ...]
) -> None:
    """Logs of the run's other groups exist."""
    spec = RunSpec(name="run", groups=GroupsSpec(count=2, ranks_per_group=1))
    code, out, err = follow(machine, monkeypatch, *more, *asked, spec=spec)
    assert (code, out, err.strip()) == (1, "", said)


def test_more_than_one_look_reads_comes_before_the_ranks_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    log = machine.joined(group=1, rank=0)
    log.new()
    monkeypatch.setattr(log_follower, "READ_BYTES", 64)
    machine.log("n1", 1, 2, 0, *(f"line {n}" for n in range(100)), "[/data/x] it crashes")
    machine.shim("n1", 10.0, "exited", "run.1.2.0", exit_code=1, signal=None, oom=False, told="")
    entries, looks = log.new(), 1
    assert log.behind
    while log.behind:
        entries, looks = [*entries, *log.new()], looks + 1
    assert looks > 5
    assert [e.text for e in entries] == [
        *(f"line {n}" for n in range(100)), "[/data/x] it crashes", "ended with exit code 1",
    ]  # fmt: skip
