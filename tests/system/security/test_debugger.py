"""A rank at a breakpoint, and a person on another machine: only the supervisor's certificate lets them in."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed import netns
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import toy_spec
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import EnvSpec, TrainerSpec
from supervisor.shell.inspect import debugging
from supervisor.wire.records import RunRecord
from tests.helpers.reasons import codes
from tests.helpers.relay import relay
from tests.helpers.tls import FAR
from tests.system.security.world import TlsWorld, tls_world

pytestmark = [pytest.mark.etcd, pytest.mark.root, pytest.mark.long, pytest.mark.timeout(600)]

STOPS = """
import time
import everstep_trainer

def works(step):
    secret = step * 21
    breakpoint()
    return secret

with everstep_trainer.start() as rank:
    rank.admit()
    step = 0
    while rank.goes_on(step):
        step += 1
        if step == 2 and rank.launch.generation == 1:
            works(step)
        time.sleep(0.1)
        rank.step(step, loss=1.0)
"""
PLAIN = "insecure = true\n"


@pytest.fixture
def far() -> Iterator[netns.Network]:
    if why_not := netns.available():
        pytest.skip(why_not)
    with netns.network(1) as made:
        yield made


def listener(network: netns.Network) -> socket.socket:
    """Returns a listening socket of ours in the namespace that the far machine reaches. A socket stays where it was
    made: a thread goes there for that, and ends there."""
    made: list[socket.socket] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{network.hub}", "rb") as there:
            if libc.setns(there.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.create_server((FAR, 0)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def from_far(
    network: netns.Network, security: Path, etcd: str, *words: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs `supervisor debug` on the far machine."""
    command = ["nsenter", f"--net=/run/netns/{network.nodes[0][0]}", sys.executable, "-m", "supervisor.cli", "debug"]
    options = ["--etcd", etcd, "--security", str(security), "--home", str(security.parent / "nothing-here")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("SUPERVISOR_")}
    return subprocess.run(
        [*command, *words, *options], input=stdin, capture_output=True, text=True, check=False, timeout=60, env=own
    )


def stands(world: TlsWorld, record: RunRecord) -> bool:
    return [at.name for at in debugging.stopped(world.mirror(), record.spec.name)] == ["0.0"]


def test_attach_from_another_machine(tmp_path: Path, far: netns.Network) -> None:
    (tmp_path / "stops.py").write_text(STOPS)
    with tls_world(tmp_path) as world, relay(world.etcd.plain, listener(far)) as way:
        world.supervisor()
        spec = replace(
            toy_spec("far", groups=1, spares=0),
            trainer=TrainerSpec(command=("python", "stops.py")),
            env=EnvSpec(directory=str(tmp_path)),
        )
        record = world.launch(spec)
        eventually(lambda: stands(world, record), 120, "it stands")
        etcd = f"https://{way.endpoint}"
        file = world.certificates.file

        found = from_far(far, file("supervisor"), etcd, "--json")
        assert [(f["group"], f["rank"], f["function"]) for f in json.loads(found.stdout)] == [(0, 0, "works")], found
        said = from_far(far, file("supervisor"), etcd, "attach", "0.0", stdin="p secret\n")
        assert said.returncode == 0, said.stderr
        assert said.stdout.splitlines()[-2:] == [
            "42",
            "rank 0.0 stays stopped: supervisor debug far attach 0.0, or continue",
        ]

        for who in ("reader", "node-n2"):
            refused = from_far(far, file(who), etcd, "attach", "0.0", stdin="p secret\nquit\n")
            assert (refused.returncode, refused.stdout) == (1, ""), who
            assert "supervisor:" in refused.stderr
            assert "Traceback" not in refused.stderr
        plain = tmp_path / "plain.toml"
        plain.write_text(PLAIN)
        for address in (etcd, f"http://{way.endpoint}"):
            refused = from_far(far, plain, address, "attach", "0.0", stdin="quit\n")
            assert (refused.returncode != 0, refused.stdout) == (True, ""), address
            assert "Traceback" not in refused.stderr
        assert stands(world, record), "it still stands"
        assert world.incidents(record) == []

        assert from_far(far, file("supervisor"), etcd, "cast", "0.0", "quit").returncode == 0
        eventually(world.running(record, 2), 120, "its group is started again")
        (last,) = world.incidents(record)
        assert codes(*last.evidence) == {Code.DEBUGGED}
        world.check(record, stepped=False)
