"""`python -m titan_actor.lighthouse`: TorchFT's lighthouse on loopback, which beats for the ids that its gate names.

Prints {"port": P, "private": whether it has a network of its own}. Reads lines {"beat": [replica ids]} and answers each with {"late_s": seconds since the last round of
beats}. Heartbeats those ids at once and every 50 ms until the next line, and ends at end of file. Loads only TorchFT's native
module: the package would import torch too (235 MB against about 20).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from supervisor.wire.programs import QUORUM_IDS_ABOVE
from supervisor.wire.version import misfit
from titan_actor import own_network, quorum_ids, torchft_names

BEAT_EVERY_S = 0.05
"""Seconds between beats. Small beside the gate's heartbeat timeout: a few late beats drop no group."""

SLOW_BEAT_S = 1.0


def native() -> Any:
    """Returns torchft._torchft without the package around it. Raises ImportError when torchft is not installed."""
    package = importlib.util.find_spec("torchft")
    for folder in package.submodule_search_locations or () if package else ():
        for suffix in EXTENSION_SUFFIXES:
            file = Path(folder) / f"_torchft{suffix}"
            if file.exists():
                spec = importlib.util.spec_from_file_location("_torchft", file)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    raise ImportError("torchft's native module is not installed")


class Beats:
    """Heartbeats the ids of the newest list, from a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ids: tuple[str, ...] = ()
        self._news = threading.Event()
        self._round_at = time.monotonic()
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def set(self, ids: tuple[str, ...]) -> None:
        """Beats for these ids from now on, and for no other."""
        if ids != self._ids:
            self._ids = ids
            self._news.set()

    @property
    def late_s(self) -> float:
        """Seconds since the last round of beats."""
        return time.monotonic() - self._round_at

    def _run(self) -> None:
        while True:
            due = time.monotonic() + BEAT_EVERY_S
            self._news.clear()
            for replica_id in self._ids:
                try:
                    self._client.heartbeat(replica_id, timeout=timedelta(seconds=SLOW_BEAT_S))
                except (RuntimeError, TimeoutError, OSError) as error:
                    print(f"a beat for {replica_id} failed: {error}", file=sys.stderr, flush=True)
            self._round_at = time.monotonic()
            self._news.wait(max(0.0, due - time.monotonic()))


def beat_list(line: str) -> tuple[str, ...]:
    """Returns the ids of a line from the gate; raises ValueError for anything else."""
    ids = json.loads(line)["beat"]
    if not isinstance(ids, list) or not all(isinstance(replica_id, str) for replica_id in ids):
        raise ValueError("beat must be a list of replica ids")
    return tuple(ids)


def main(arguments: list[str] | None = None) -> None:
    """Serves until stdin ends."""
    parser = argparse.ArgumentParser(prog="titan_actor.lighthouse")
    parser.add_argument("--min-replicas", type=int, required=True)
    parser.add_argument("--join-timeout-ms", type=int, required=True)
    parser.add_argument("--heartbeat-timeout-ms", type=int, required=True)
    parser.add_argument(
        "--quorum-tick-ms", type=int, default=50, help="time between two looks; a drop takes up to one more"
    )
    parser.add_argument(
        "--doors", type=int, help="descriptor of a Unix socket: hand out connections there, in a network of our own"
    )
    options = parser.parse_args(arguments)
    private = options.doors is not None and own_network.enter()
    if why := misfit("torchft"):
        sys.exit(f"the lighthouse cannot start: {why}")
    os.environ.setdefault("RUST_LOG", "warn")
    torchft = native()
    server = torchft_names.lighthouse(
        torchft,
        min_replicas=options.min_replicas,
        join_timeout_ms=options.join_timeout_ms,
        quorum_tick_ms=options.quorum_tick_ms,
        heartbeat_timeout_ms=options.heartbeat_timeout_ms,
    )
    port = int(server.address().rpartition(":")[2])
    above = int(os.environ.get(QUORUM_IDS_ABOVE, "0"))
    if above:
        address = f"http://127.0.0.1:{port}"
        quorum_ids.raise_above(torchft, address, above, options.min_replicas, options.heartbeat_timeout_ms)
        print(f"quorum ids begin above {above}", file=sys.stderr, flush=True)
    beats = Beats(torchft.LighthouseClient(f"http://127.0.0.1:{port}", timedelta(seconds=10)))
    if options.doors is not None:
        own_network.give_connections(socket.socket(fileno=options.doors), port)
    print(json.dumps({"port": port, "private": private}), flush=True)
    for line in sys.stdin:
        try:
            beats.set(beat_list(line))
            print(json.dumps({"late_s": round(beats.late_s, 3)}), flush=True)
        except (ValueError, KeyError, TypeError) as error:
            print(f"not a line from the gate: {error}: {line[:200]!r}", file=sys.stderr, flush=True)
    # the native server's threads do not end on their own
    os._exit(0)


if __name__ == "__main__":
    main()
