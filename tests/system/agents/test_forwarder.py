"""The forwarder alone: it knows if it reaches its gate, and it cuts before it reports the cut."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agents.gate.forwarder import PING_EVERY_S, PONG_WITHIN_S, SILENT_GATE_MS, Forwarder
from fault_injection.testbed import netns
from fault_injection.testbed.waiting import eventually
from tests.system.agents.toy_gate import Holder

WAY = "toy.0.1"
ESTABLISHED, CLOSE_WAIT = "01", "08"


def open_to(port: int) -> int:
    """The number of this machine's loopback connections to `port` that are not closed on the near side."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] in (ESTABLISHED, CLOSE_WAIT) for row in rows)


def stuck(forwarder: Forwarder) -> Callable[[], bool]:
    """A predicate: true when a connection to the gate had something left to send at five looks in a row."""
    looks = 0

    def look() -> bool:
        nonlocal looks
        left = [each.transport.get_write_buffer_size() for each in forwarder._forwards[WAY].outward]
        looks = looks + 1 if any(left) else 0
        return looks >= 5

    return look


async def until(predicate: Callable[[], object], deadline_s: float = 10.0) -> None:
    """Works as `eventually`, while the event loop goes on."""
    await asyncio.to_thread(eventually, predicate, deadline_s)


def with_forwarder(body: Callable[[Forwarder, Holder, list[bool]], Awaitable[None]]) -> None:
    async def run() -> None:
        told: list[bool] = []
        holder, forwarder = Holder(), Forwarder("n0", lambda _, reaches: told.append(reaches), lambda *_: None)
        try:
            await body(forwarder, holder, told)
        finally:
            forwarder.close()
            await asyncio.sleep(0)  # cancelled tasks end
            holder.close()

    asyncio.run(run())


def test_the_time_to_the_gate_is_told_in_classes_of_powers_of_two() -> None:
    async def run() -> None:
        told: list[tuple[str, float]] = []
        holder = Holder()
        forwarder = Forwarder("n0", lambda *_: None, lambda way, ms: told.append((way, ms)))
        try:
            assert forwarder.trips == {}
            await forwarder.set("toy", 0, 1, holder.endpoint)
            await until(lambda: told)
            way, ms = told[-1]
            assert forwarder.trips == {WAY: ms}
            assert (way, math.log2(ms)) == (WAY, int(math.log2(ms)))
            assert ms <= 1000 * PONG_WITHIN_S
        finally:
            forwarder.close()
            await asyncio.sleep(0)
            holder.close()

    asyncio.run(run())


def test_every_connection_is_closed_before_it_says_that_it_has_cut() -> None:
    async def body(forwarder: Forwarder, holder: Holder, told: list[bool]) -> None:
        holder.deaf = True
        port = await forwarder.set("toy", 0, 1, holder.endpoint)
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(6)]
        for number, writer in enumerate(writers):
            # one that passes on, with more than the gate's kernel takes; and one that reports that it is built
            writer.write(b"PRI " + bytes(16 << 20) if number % 2 else b'BUILT {"replica_id":"x"}\n')
        await until(lambda: open_to(holder.port) == 7)
        # unsent bytes keep a connection open that is only closed, and not cut
        await until(stuck(forwarder), 30)
        assert forwarder.reaches.get(WAY) is not True, (
            "an open connection that nobody answers on is no gate that is reached"
        )
        since = time.monotonic()
        await forwarder.set("toy", 0, 1, "")
        assert open_to(holder.port) == 0
        assert time.monotonic() - since < SILENT_GATE_MS / 2000, "it was cut, not left to the kernel's timeout"
        assert forwarder.reaches.get(WAY) is not True
        # they come back by themselves, those that wait are passed on
        await forwarder.set("toy", 0, 1, holder.endpoint)
        await until(lambda: open_to(holder.port) == 4)
        assert True not in told
        for writer in writers:
            writer.transport.abort()

    with_forwarder(body)


def test_before_any_gate_was_tried_nothing_is_known() -> None:
    async def body(forwarder: Forwarder, holder: Holder, told: list[bool]) -> None:
        await forwarder.set("toy", 0, 1, "")
        assert forwarder.reaches == {}
        holder.close()
        await forwarder.set("toy", 0, 1, holder.endpoint)
        await until(lambda: told == [False])
        holder.open()
        await until(lambda: told == [False, True])

    with_forwarder(body)


def test_a_gate_that_accepts_and_cuts_is_not_reached() -> None:
    """The gate does so with a stale generation."""

    async def body(forwarder: Forwarder, holder: Holder, told: list[bool]) -> None:
        cuts = 0

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal cuts
            assert json.loads(await reader.readline())["generation"] == 1
            cuts += 1
            writer.close()

        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        await forwarder.set("toy", 0, 1, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await until(lambda: cuts >= 5)
        assert told == [False]
        await forwarder.set("toy", 0, 1, holder.endpoint)
        await until(lambda: told == [False, True])
        server.close()

    with_forwarder(body)


REPORTER = """
import asyncio, sys
from agents.gate.forwarder import Forwarder

async def main():
    forwarder = Forwarder("n0", lambda _, reaches: print(int(reaches), flush=True), lambda *_: None)
    await forwarder.set("toy", 0, 1, sys.argv[1])
    await asyncio.Event().wait()

asyncio.run(main())
"""
LISTENER = """
import sys, threading
from tests.system.agents.toy_gate import Holder

Holder(sys.argv[1], 7000)
print("up", flush=True)
threading.Event().wait()
"""


@pytest.mark.root
def test_a_gate_whose_host_vanishes_is_not_reached_soon(tmp_path: Path) -> None:
    """The host goes silently, and no packet reports it. Only a machine's link that goes down is like that."""
    why_not = netns.available()
    if why_not:
        pytest.skip(f"needs network namespaces: {why_not}")
    children: list[subprocess.Popen[bytes]] = []

    def run_in(namespace: str, code: str, argument: str) -> Path:
        output = tmp_path / namespace
        command = ["ip", "netns", "exec", namespace, sys.executable, "-c", code, argument]
        with output.open("wb") as file:
            children.append(subprocess.Popen(command, stdout=file))
        return output

    with netns.network(2) as network:
        (near, _), (far, address) = network.nodes
        try:
            listening = run_in(far, LISTENER, address)
            eventually(lambda: listening.read_text() == "up\n", 20)
            told = run_in(near, REPORTER, f"{address}:7000")
            eventually(lambda: told.read_text() == "1\n", 20)
            network.cut(1)
            cut = time.monotonic()
            eventually(lambda: told.read_text() == "1\n0\n", 20)
            away_s = time.monotonic() - cut
            network.mend(1)
            eventually(lambda: told.read_text() == "1\n0\n1\n", 20)
            print(f"MEASURED silent gate: not reached after {away_s:.1f} s")
            assert away_s < PING_EVERY_S + PONG_WITHIN_S + SILENT_GATE_MS / 1000
        finally:
            for child in children:
                child.kill()
                child.wait()
