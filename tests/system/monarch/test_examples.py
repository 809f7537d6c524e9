"""The shipped examples, which are those of Monarch's documentation and of its notebook with TorchTitan, nearly unchanged."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import supervisor.client as everstep
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.wire.address import free_port
from tests.system.monarch import needs  # noqa: F401

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[3] / "examples" / "monarch"

Lab = tuple[World, everstep.Pool]


@contextmanager
def running(lab: Lab, name: str, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Runs an example as a person does."""
    w, pool = lab
    eventually(lambda: not any(n.mesh for n in pool.status().nodes), 30, "the mesh before has ended")
    env = {**os.environ, "SUPERVISOR_ETCD": w.etcd.endpoint, "SUPERVISOR_HOME": str(w.runs), **more}
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def output(lab: Lab, name: str, *arguments: str) -> str:
    with running(lab, name, *arguments) as process:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        return out


def test_a_mesh_of_actors(lab: Lab) -> None:
    out = output(lab, "actor_mesh")
    assert out.splitlines()[0] == "{hosts: 2}"
    assert re.findall(r"'gpus': \d/2}, (\d)\)", out)[:4] == ["1"] * 4
    assert out.count("taking a step.") == 4
    for rank in range(4):
        assert f"Sender (actor_0:{rank}) msg='Ping'" in out


def test_slices(lab: Lab) -> None:
    out = output(lab, "slices")
    for idx in range(4):
        assert f'Identity: {idx}, msg="Here\'s an arbitrary unique value: {idx}"' in out
    values = re.findall(r"'hosts': (\d)/2, 'gpus': (\d)/4}, (\d)\)", out)
    assert [int(value) for _, _, value in values] == [1, 1, 0, 0, 2, 2, 1, 1]
    assert out.splitlines()[-1] == "{gpus: 2}"


def test_exceptions(lab: Lab) -> None:
    out = output(lab, "exceptions")
    assert "It didn't say hello: Exception: I don't want to" in out
    assert "\nhello\n" in out
    assert "Failure received: MeshFailure(mesh_name=children" in out


def test_the_table_of_breakpoints(lab: Lab) -> None:
    port = free_port()
    source = (EXAMPLES / "breakpoints.py").read_text().splitlines()
    breakpoints = [number + 1 for number, line in enumerate(source, 1) if line.strip() == "breakpoint()"]
    with running(lab, "breakpoints", MONARCH_DEBUG_SERVER_PORT=str(port)) as process:
        eventually(lambda: listens(port), 60, "the debugger listens")
        with socket.create_connection(("localhost", port), 10) as debugger:
            debugger.settimeout(30)
            hears(debugger, "monarch_dbg> ")
            table = eventually(lambda: full(asks(debugger, "list\n", "monarch_dbg> ")), 60, "all four stand")
            assert re.search(
                r"Actor Name\s*\|\s*Rank\s*\|\s*Coords\s*\|\s*Hostname\s*\|\s*Function\s*\|\s*Line No", table
            )
            stands = [[cell.strip() for cell in r.split("|")[1:-1]] for r in table.splitlines() if "| debugee" in r]
            assert [(row[1], row[4]) for row in stands] == [
                (str(rank), "None._debugee_actor_internal") for rank in range(4)
            ]
            assert [int(row[5]) for row in stands] == breakpoints
            assert "_debugee_actor_internal" in asks(debugger, "attach debugee 3\n", "(Pdb) ")
            assert asks(debugger, "p rank\n", "(Pdb) ") == "3\n(Pdb) "
            asks(debugger, "detach\n", "monarch_dbg> ")
            debugger.sendall(b"continue\n")
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert re.findall(r"/2}, (\d)\)", out) == ["1", "3", "5", "7"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def asks(debugger: socket.socket, line: str, until: str) -> str:
    debugger.sendall(line.encode())
    return hears(debugger, until)


def hears(debugger: socket.socket, until: str) -> str:
    text = ""
    while not text.endswith(until):
        piece = debugger.recv(65536).decode()
        assert piece, text
        text += piece
    return text


def full(table: str) -> str:
    return table if table.count("| debugee") == 4 else ""


@pytest.mark.trainers
def test_titan_as_an_actor(lab: Lab) -> None:
    found = re.findall(r"'loss': ([\d.]+), 'step': (\d+)", output(lab, "titan_trainer", "6"))
    assert [int(step) for _, step in found] == [6] * 4, "two ranks, twice"
    (a, b), (c, d) = [[float(loss) for loss, _ in found[at : at + 2]] for at in (0, 2)]
    assert a == b < 8.5, "one training of two ranks: all log the same mean"
    assert c == d != a, "the second has another learning rate"


def test_a_lost_node(lab: Lab) -> None:
    w, pool = lab
    with running(lab, "lost_node") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "all work\n"
        w.kill_node(pool.status().nodes[1].node)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    lines = [line for line in out.splitlines() if line != "all work"]
    assert lines[0].startswith("SupervisionError: Endpoint call workers.work() failed")
    assert lines[1:] == ["lost: n2", "['done']", "done"]
