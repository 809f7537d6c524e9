"""The lighthouse child is light, listens on loopback alone, and heartbeats for exactly the gate's groups."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from tests.real_trainers.titan.groups import Lighthouse
from titan_actor.lighthouse import beat_list, native

LighthouseClient = native().LighthouseClient


def status(lighthouse: Lighthouse) -> str:
    with urllib.request.urlopen(f"http://{lighthouse.address}/status", timeout=5) as page:
        return str(page.read().decode())


def heartbeating(lighthouse: Lighthouse, replica_id: str) -> bool:
    """True if its last heartbeat is younger than the 150 ms that this test gives."""
    seen = re.search(rf"{replica_id}: seen ([0-9.]+)s ago", status(lighthouse))
    return seen is not None and float(seen[1]) < 0.15


def test_beats_for_the_newest_list_only() -> None:
    lighthouse = Lighthouse(heartbeat_timeout_ms=150)
    try:
        lighthouse.beat(["one:a", "two:b"])
        eventually(lambda: heartbeating(lighthouse, "one:a") and heartbeating(lighthouse, "two:b"), 10)
        lighthouse.beat(["two:b"])
        eventually(lambda: not heartbeating(lighthouse, "one:a"), 10, "the one left out grows old")
        eventually(lambda: heartbeating(lighthouse, "two:b"), 10)
        # a line that is not the gate's changes nothing
        assert lighthouse.process.stdin is not None
        lighthouse.process.stdin.write("nonsense\n")
        lighthouse.process.stdin.flush()
        until = time.monotonic() + 0.5
        eventually(lambda: time.monotonic() > until, 2)
        eventually(lambda: heartbeating(lighthouse, "two:b"), 10)
    finally:
        assert lighthouse.close() == 0


def test_ends_with_its_stdin() -> None:
    assert Lighthouse().close() == 0


def test_is_light_and_on_loopback_alone() -> None:
    lighthouse = Lighthouse()
    try:
        pid = lighthouse.process.pid
        size = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        assert int(size.split()[1]) < 60_000, "kB: torch alone would be 200 MB"
        assert "torch/lib" not in Path(f"/proc/{pid}/maps").read_text()
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        port = f"{lighthouse.port:04X}"
        assert {row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")} == {f"0100007F:{port}"}
        tcp6 = Path(f"/proc/{pid}/net/tcp6").read_text()
        assert f":{port} " not in tcp6
    finally:
        lighthouse.close()


@pytest.mark.parametrize("line", ["", "1", "[]", '{"beat": 1}', '{"beat": [1]}', '{"beats": []}'])
def test_refuses_other_lines(line: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        beat_list(line)


def test_help_names_its_options() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "titan_actor.lighthouse", "--help"], check=True, capture_output=True, text=True
    ).stdout
    for option in ("--min-replicas", "--join-timeout-ms", "--heartbeat-timeout-ms", "--quorum-tick-ms"):
        assert option in told
    assert json.dumps(beat_list('{"beat": ["a"]}')) == '["a"]'


@pytest.mark.parametrize("min_replicas", [1, 2])
def test_a_fresh_one_goes_on_above_the_ids_of_the_one_before(min_replicas: int) -> None:
    """Its throwaway managers are forgotten: the first real quorum has the real groups alone."""
    lighthouse = Lighthouse(heartbeat_timeout_ms=1000, min_replicas=min_replicas, quorum_ids_above=230)
    try:
        client = LighthouseClient(f"http://{lighthouse.address}", timedelta(seconds=5))
        names = [f"real-{n}" for n in range(min_replicas)]
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(client.quorum, replica_id=name, timeout=timedelta(seconds=10)) for name in names]
            quorums = [future.result() for future in asked]
        assert all(quorum.quorum_id > 230 for quorum in quorums)
        assert {member.replica_id for member in quorums[0].participants} == set(names)
    finally:
        lighthouse.close()
