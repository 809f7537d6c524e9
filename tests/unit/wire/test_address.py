from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from supervisor.wire import address


def test_free_ports_are_different_ones_that_no_outgoing_connection_gets() -> None:
    ports = address.free_ports(20)
    assert len(set(ports)) == 20
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port in address.PORTS for port in ports)
    assert max(ports) < lowest_ephemeral or lowest_ephemeral < 32768, "this machine's range is not Linux' own"


@pytest.mark.parametrize("reuse", [0, 1])
def test_a_port_at_which_somebody_listens_is_not_chosen(monkeypatch: pytest.MonkeyPatch, reuse: int) -> None:
    port = address.free_port()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        other.bind(("127.0.0.1", port))
        other.listen()
        assert "in use" in address.taken("127.0.0.1", port)
        free = address.free_port()
        monkeypatch.setattr(address.random, "sample", lambda ports, tries: [port, free])
        assert address.free_port() == free
        monkeypatch.setattr(address.random, "sample", lambda ports, tries: [port])
        with pytest.raises(OSError, match=r"no 1 free of 200 ports tried from 20000 to 32000 on 127\.0") as raised:
            address.free_port()
        assert raised.value.errno == errno.EADDRINUSE
    assert address.taken("127.0.0.1", port) == ""


def test_an_address_of_another_machine_is_said_at_once() -> None:
    with pytest.raises(OSError) as raised:
        address.free_port("192.0.2.1")
    assert raised.value.errno == errno.EADDRNOTAVAIL
    assert "assign" in address.taken("192.0.2.1", 0)
