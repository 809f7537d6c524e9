from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from supervisor.wire import address
from titan_actor import address as of_ranks


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


def test_an_interface_or_a_network_names_an_address_of_this_machine() -> None:
    assert address.in_network("lo", "") == address.in_network("", "127.0.0.0/8") == "127.0.0.1"
    assert address.interface_of("127.0.0.1") == "lo"
    with pytest.raises(ValueError, match=r"no interface ib9 with an address here; there is .*127\.0\.0\.1 on lo"):
        address.in_network("ib9", "")
    with pytest.raises(ValueError, match=r"no address in 203\.0\.113\.0/24 here"):
        address.in_network("", "203.0.113.0/24")


def test_the_users_interface_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(of_ranks, "_node", None)
    of_ranks.use("127.0.0.1")
    assert (os.environ["NCCL_SOCKET_IFNAME"], os.environ["GLOO_SOCKET_IFNAME"]) == ("ib0", "lo")
    assert of_ranks.node() == "127.0.0.1"
