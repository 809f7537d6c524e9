"""A heal that fails again and again is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from supervisor.wire.records import Healing, TrainerLaunch
from tests.helpers.ordinary_user import as_user
from titan_actor import address, torchft_names
from titan_actor import heals as heals_module
from titan_actor.heals import Heals
from titan_actor.ledger import told
from titan_actor.report import Report


def launch_of(folder: Path) -> TrainerLaunch:
    return TrainerLaunch(
        run="r", group=0, generation=1, rank=0, world_size=1, groups=2, min_groups=1, node="n", node_address="127.0.0.1",
        master_port=1, lighthouse="127.0.0.1:1", run_dir="", rank_dir=str(folder),
    )  # fmt: skip


def test_heals_that_fail_in_a_row_are_counted_until_one_succeeds(tmp_path: Path) -> None:
    report = Report(launch_of(tmp_path))
    refused = True

    def receive(src_rank: int, metadata: str, step: int) -> str:
        if refused:
            raise ConnectionRefusedError("[Errno 111] Connection refused")
        return f"{metadata}{step}"

    fetch = Heals(report).watching(receive)
    for times in (1, 2, 3):
        with pytest.raises(ConnectionRefusedError):
            fetch(src_rank=1, metadata="http://10.0.0.2:43/checkpoint/", step=5)
        failed = report.progress.heal_failed
        assert failed is not None
        assert (failed.times, failed.source) == (times, "10.0.0.2:43")
        assert failed.error == "ConnectionRefusedError: [Errno 111] Connection refused"
        assert failed.for_s >= 0
    refused = False
    assert fetch(src_rank=1, metadata="http://10.0.0.2:43/checkpoint/", step=5) == "http://10.0.0.2:43/checkpoint/5"
    assert report.progress.heal_failed is None


def test_a_heal_has_its_source_and_the_size_of_the_state(tmp_path: Path) -> None:
    state = {"user": {"parameters": [[torch.zeros(10)], [torch.zeros(2, 3, dtype=torch.bfloat16)]], "step": 5}}
    heals = Heals(Report(launch_of(tmp_path)))
    heals.watching(lambda *_: state)(1, "http://10.0.0.2:43/checkpoint/")
    assert (heals.source, heals.bytes) == ("10.0.0.2:43", 52)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_a_heal_in_progress_reports_what_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of three tensors over HTTP, by TorchFT's own transport."""
    from torchft.checkpointing import http_transport as transport

    monkeypatch.setattr(transport, "_streaming_load", transport._streaming_load)  # put back at the end
    monkeypatch.setattr(heals_module, "EVERY_S", 0.0)
    report = Report(launch_of(tmp_path))
    heals = Heals(report)
    heals.count()
    seen: list[Healing] = []
    update = report.update
    monkeypatch.setattr(report, "update", lambda **new: (update(**new), seen.append(new["healing"])))
    state = {"user": {f"layer {n}": torch.zeros(25_000) for n in range(3)}}
    peer: Any = transport.HTTPTransport(timeout=timedelta(seconds=10), num_chunks=0)
    mine: Any = transport.HTTPTransport(timeout=timedelta(seconds=10), num_chunks=0)
    try:
        peer.send_checkpoint([1], 5, state, timedelta(seconds=10))
        port = peer._server.socket.getsockname()[1]
        receive = heals.watching(mine.recv_checkpoint)
        receive(0, f"http://127.0.0.1:{port}/checkpoint/", step=5, timeout=timedelta(seconds=10))
    finally:
        for transport_of_one in (peer, mine):
            transport_of_one.shutdown()
            transport_of_one._server.server_close()
    *came, over = seen
    assert over is None
    assert [one.source for one in came] == [f"127.0.0.1:{port}"] * len(came)
    sizes = [one.bytes for one in came]
    assert sizes == sorted(sizes)
    assert len(sizes) >= 3
    assert 300_000 <= sizes[-1] < 310_000
    assert report.progress.healing is None


ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as one:
    one.sendall(b"GET /checkpoint/5/full HTTP/1.0\\r\\n\\r\\n")
    try:
        if sys.argv[2] == "half":
            one.shutdown(socket.SHUT_WR)
        print(one.makefile("rb").readline().decode().strip())
    except OSError:
        print()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("how", ["whole", "half"])
def test_another_user_of_the_node_is_given_no_state(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchft.checkpointing import http_transport as transport

    for of, name in ((transport, "_IPv6HTTPServer"), (transport.HTTPTransport, "address")):
        monkeypatch.setattr(of, name, getattr(of, name))  # put back at the end
    monkeypatch.setattr(address, "_node", "127.0.0.1")
    torchft_names.heal_at_node()
    peer: Any = transport.HTTPTransport(timeout=timedelta(seconds=10), num_chunks=0)
    try:
        peer.send_checkpoint([1], 5, {"user": {}}, timedelta(seconds=10))
        ask = [sys.executable, "-c", ASK, str(peer._server.server_port), how]
        said = [
            subprocess.run([*of, *ask], capture_output=True, text=True, check=True).stdout.strip()
            for of in ([], as_user())
        ]
    finally:
        peer.shutdown()
        peer._server.server_close()
    assert said[1] == ""
    if how == "whole":
        assert said[0] == "HTTP/1.0 200 OK"


def test_an_error_is_told_with_its_cause() -> None:
    first = OSError("Address already in use")
    second, third = RuntimeError("the manager did not start"), ValueError(f"no trainer: {first}")
    second.__cause__, third.__cause__ = first, first
    assert told(first) == "OSError: Address already in use"
    assert told(second) == "RuntimeError: the manager did not start (caused by OSError: Address already in use)"
    assert told(third) == "ValueError: no trainer: Address already in use", "it is said already"
