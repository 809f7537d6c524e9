"""Which of this machine's addresses the others see. Standard library only."""

from __future__ import annotations

import socket

from supervisor.wire.security import host_and_port

AUTO = "auto"
"""In the place of an address: that from which the first etcd endpoint is reached."""


def told(address: str, endpoint: str) -> str:
    """The address itself, or that which stands for AUTO.

    Raises ValueError for what is no endpoint, OSError with a sentence when it cannot be told.
    """
    if address != AUTO:
        return address
    try:
        return towards(endpoint)
    except OSError as error:
        raise OSError(
            f"--address auto: cannot tell from which address of this machine {endpoint} is reached "
            f"({error.strerror or error}); check the name and the network, or give the --address"
        ) from error


def towards(endpoint: str) -> str:
    """The address of this machine from which an etcd endpoint is reached, as the routing table has it: nothing is sent.

    Raises ValueError for what is no endpoint, OSError when its name does not resolve or no route leads there.
    """
    host, port = host_and_port(endpoint)
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
    trouble = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
                return str(probe.getsockname()[0])
            except OSError as error:
                trouble = error
    raise trouble
