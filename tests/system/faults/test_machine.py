"""The tools of faults on the real machine: libfaketime, a tmpfs, `ss -K`, another user's processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fault_injection.chaos import own
from fault_injection.doubles import clocks
from fault_injection.doubles.clocks import Clocks
from fault_injection.faults import site
from fault_injection.testbed import netns
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal
from tests.unit.fault_injection.faults.test_catalogue import OneProcess, made, target

FOLLOWS = """
import sys, threading
from fault_injection.doubles import clocks
from fault_injection.testbed import netns
clocks.follow(["--node=n1"])
print(sys.argv[1:], flush=True)
threading.Event().wait(60)
"""


def test_a_clock_is_moved_while_its_agent_runs_and_only_there(tmp_path: Path) -> None:
    if why := site.no_faketime():
        pytest.skip(f"NO CLOCK WAS MOVED: {why}")
    moved = Clocks(tmp_path)
    moved.move("n1", "+0")
    command, environment = [sys.executable, "-c", FOLLOWS, "--lease-s=5"], {**os.environ, clocks.FOLDER: str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as agent:
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == "['--lease-s=5']\n"
            eventually(lambda: abs(moved.ahead_s("n1") or 9.0) < 1, 10, "it says what it reads")
            moved.move("n1", "+10800")
            eventually(lambda: abs((moved.ahead_s("n1") or 0) - 10_800) < 1, 10, "it is moved")
        finally:
            agent.kill()
    moved.back("n1")
    assert moved.ahead_s("n1") is None
    moved.move("n2", "+10800")
    clocks.follow(["--node=n1"])  # nothing happens


def test_what_a_node_wrote_on_its_own_disk_is_there_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "n1"
    if why := netns.available():
        pytest.skip(f"NO DISK WAS MOUNTED: {why}")
    with own.disk(folder, 1 << 20):
        assert folder.is_mount()
        (folder / "ranks").mkdir()
        (folder / "ranks" / "output.log").write_text("said")
        os.mkfifo(folder / "pipe")
    assert not folder.is_mount()
    assert (folder / "ranks" / "output.log").read_text() == "said"
    assert [path.name for path in tmp_path.iterdir()] == ["n1"]
    with pytest.raises(Fatal, match="mount -t tmpfs"), own.disk(folder, -1):
        pass


def test_connections_between_ranks_are_ended_for_real_and_no_others(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(60)"
        ranks = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
        peers = [server.accept()[0] for _ in ranks]
        try:
            scene = OneProcess(str(tmp_path), 0, pids={(0, 1, 0): os.getpid(), (1, 2, 0): ranks[0].pid})
            if why := site.no_reset():
                pytest.skip(f"NO CONNECTION WAS ENDED: {why}")
            said = made("socket_reset", scene, target(tmp_path, ranks[0].pid))
            assert said.startswith("1 connections between")
            ports = {connection.getpeername()[1] for connection in peers if not reset(connection)}
            assert len(ports) == 1
            with pytest.raises(Fatal, match="of 0 connections"):
                made("socket_reset", scene, target(tmp_path, ranks[0].pid))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            for connection in peers:
                connection.close()


def reset(connection: socket.socket) -> bool:
    try:
        connection.send(b"x")
        connection.getpeername()
    except OSError:
        return True
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_slurmctld_of_another_user_is_not_stopped(slurmctld: Path) -> None:
    code = "import sys; from tests.unit.fault_injection.faults.test_engine import Cell, HERE; import os; os.setuid(65534)\n"
    code += "try: Cell({**HERE, 'SlurmctldPidFile': sys.argv[1]}).controller()\nexcept Exception as error: print(error)"
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        open_to_all = Path(folder, "slurmctld.pid")
        open_to_all.write_text(slurmctld.read_text())
        Path(folder).chmod(0o755)
        argv = [sys.executable, "-c", code, str(open_to_all)]
        result = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert "cannot be stopped by this user: Operation not permitted" in result.stdout
