"""The gate keeps nothing of visitors that claim to be a generation that etcd has not named."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from agents.gate.main import Gate
from supervisor.wire import sockets


def test_nothing_is_kept_of_visitors_that_left(tmp_path: Path) -> None:
    """Any node of the system may claim any group and generation, as often as it likes."""
    asyncio.run(_visited(tmp_path))


async def _visited(folder: Path) -> None:
    options = {
        "run": "toy",
        "node": "h",
        "address": "127.0.0.1",
        "folder": str(folder),
        "generation": 1,
        "groups": 2,
        "min_groups": 1,
        "quorum_ids_above": 0,
        "join_timeout_ms": 1000,
        "heartbeat_timeout_ms": 1000,
        "security": "",
        "etcd": ("127.0.0.1:1",),
    }
    gate = Gate(argparse.Namespace(**options))
    listener = sockets.listen_at("127.0.0.1")
    accepting = asyncio.create_task(gate._accept(listener))
    try:
        for generation in range(20):
            claim = {"node": "evil", "run": "toy", "group": 77, "generation": generation}
            _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
            writer.write(json.dumps(claim).encode() + b"\n")
            await writer.drain()
            async with asyncio.timeout(10):
                while not gate._visitors:
                    await asyncio.sleep(0.001)
                writer.write(b"x" * 8192)
                while (77, generation) not in gate._state.generations:
                    await asyncio.sleep(0.001)
                writer.close()
                while gate._visitors:
                    await asyncio.sleep(0.001)
        assert gate._state.generations == {}
    finally:
        accepting.cancel()
        for opened in (listener, gate._lighthouse._doors, gate._lighthouse._child_doors):
            opened.close()
