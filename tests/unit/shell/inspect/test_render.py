"""The texts that a person reads of a run."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.shell.inspect.render import incidents, nodes, shadows
from supervisor.shell.inspect.status import NodeStatus

ONE = Incident(
    id="i1", kind=Kind.HANG, group=0, node="n1", rung=Rung.RESTART, generation_before=1, generation_after=1,
    reason=Reason.of(Code.TEXT, text="its node lives"), evidence=(Reason.of(Code.TEXT, text="rank 0 has not committed a step for 30 s"),), shadow=True,
)  # fmt: skip


def said(*found: Incident) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(shadows(found))
    return out.getvalue()


@pytest.mark.parametrize("by_itself", [0, 1, 3])
def test_of_what_was_only_observed_it_says_how_much_recovered_by_itself(by_itself: int) -> None:
    hangs = [replace(ONE, id=f"i{n}", state="recovered" if n < by_itself else "open") for n in range(4)]
    crash = replace(ONE, id="i9", kind=Kind.CRASH, state="halted")
    text = said(*hangs, crash)
    assert f"5 would have been acted on, {by_itself} recovered by themselves, {4 - by_itself} still open" in text
    assert f"hang: 4, {by_itself} by themselves, {4 - by_itself} still open" in text
    assert "crash: 1, 0 by themselves, 0 still open" in text


def test_incidents_say_when_each_was_seen_in_which_zone_within_80_columns() -> None:
    longest = max(Kind, key=lambda kind: len(kind.value))
    found = [
        replace(ONE, node="gpu-node-17", kind=longest, opened=5.0, recovered=27.34),
        replace(ONE, id="i12", node=""),
    ]
    out = io.StringIO()
    Console(file=out, width=80, soft_wrap=True).print(incidents(found, {"i1": 1_700_000_000.0}))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:3] == ["id", "seen", "(UTC)"]
    assert "11-14 22:13:20" in lines[1]
    assert lines[2] == "    rung 1 restart (shadow), generation 1 -> 1: its node lives"
    assert [line.index("gpu-node-17") for line in lines[1:2]] == [lines[0].index("node")]
    assert "  -  " in lines[3]


def test_what_outlasted_a_leader_took_the_time_without_one_too() -> None:
    found = [replace(ONE, opened=5.0, recovered=9.5, shadow=False), replace(ONE, id="i2", opened=20.0, recovered=21.25)]
    out = io.StringIO()
    Console(file=out, width=200).print(shadows(found, {}, ((5.0, 60.0), (10.0, 500.0))))
    assert [line.split()[-2] for line in out.getvalue().splitlines()[1:4:2]] == ["64", "1.2"]


NODE = NodeStatus(
    node="gpu-node-17", alive=True, role="trainer", address="10.0.12.117", allocation="debug-a12", host="gpu-node-17", leaving="",
    runs=("debug group 0 rank 0 generation 1 (running)",), warm="ready", disk_free_bytes=2**40, memory_available_bytes=2**40,
    problems=(), facts=("clock_unsynchronised: start chronyd",),
)  # fmt: skip


def test_a_row_of_a_node_is_whole_on_80_columns_and_what_holds_everywhere_is_said_once() -> None:
    lost = replace(NODE, node="n2", host="n2", alive=False, cordon="incident i2: node_lost")
    out = io.StringIO()
    Console(file=out, width=80, soft_wrap=True).print(
        nodes([NODE, lost, replace(NODE, node="n3", host="n3", facts=())])
    )
    head, *lines = out.getvalue().splitlines()
    assert lines[0].split() == [
        "gpu-node-17", "alive", "trainer", "10.0.12.117", "debug-a12", "ready", "1024.0", "GiB", "1024.0", "GiB",
    ]  # fmt: skip
    assert all(line.index("trainer") == head.index("role") for line in (lines[0], lines[2], lines[5]))
    assert lines[1] == "    debug group 0 rank 0 generation 1 (running)"
    assert lines[2].startswith("n2           silent")
    assert lines[3:5] == [
        "    last reported: debug group 0 rank 0 generation 1 (running)",
        "    cordoned: incident i2: node_lost",
    ]
    assert lines[7:] == ["gpu-node-17, n2: clock_unsynchronised: start chronyd"]
