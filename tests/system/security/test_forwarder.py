"""The forwarder takes for the gate only a peer with the certificate of the gate's node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agents.gate.forwarder import Forwarder
from supervisor.wire.listener_files import ListenerFiles, server_context
from supervisor.wire.security import Security
from tests.helpers.tls import Certificates

PATIENCE_S = 5.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.make("node-n1", "node-host", "node-n2", "supervisor")
    return made


class Gate:
    """Notes the first line of every client."""

    def __init__(self) -> None:
        self.headers: asyncio.Queue[bytes] = asyncio.Queue()
        self.came = 0
        self.address = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        try:
            line = await reader.readline()
            if line:
                self.headers.put_nowait(line)
                await reader.read()
        except OSError:
            pass  # the forwarder has left
        finally:
            writer.close()


@asynccontextmanager
async def listening(security: Security | None) -> AsyncIterator[Gate]:
    gate = Gate()
    context = server_context(ListenerFiles(security)) if security is not None else None
    server = await asyncio.start_server(gate.accept, "127.0.0.1", 0, ssl=context)
    gate.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield gate
    finally:
        server.close()
        await asyncio.sleep(0.1)  # a handshake that the forwarder has cut off ends in the loop's next turns


async def tries(gate: Gate, ours: Security, gate_node: str) -> bytes | None:
    """The header that the gate got from a forwarder of n1; None when that came several times and sent nothing."""
    forwarder = Forwarder("n1", lambda name, reaches: None, lambda *_: None, lambda: ours)
    try:
        await forwarder.set("toy", 0, 1, gate.address, gate_node)
        async with asyncio.timeout(PATIENCE_S):
            while gate.came < 3:
                try:
                    return await asyncio.wait_for(gate.headers.get(), 0.1)
                except TimeoutError:
                    continue
        return None
    finally:
        forwarder.close()


def test_the_gate_of_the_right_node_is_told(certificates: Certificates) -> None:
    async def scenario() -> None:
        async with listening(certificates.of("node-host")) as gate:
            header = await tries(gate, certificates.of("node-n1"), "host")
            assert header is not None
            assert b'"node": "n1"' in header

    asyncio.run(scenario())


@pytest.mark.parametrize("who", ["node-n2", "supervisor"])
def test_a_certificate_of_somebody_else_is_not_the_gate(
    certificates: Certificates, capfd: pytest.CaptureFixture[str], who: str
) -> None:
    async def scenario() -> None:
        async with listening(certificates.of(who)) as gate:
            assert await tries(gate, certificates.of("node-n1"), "host") is None

    asyncio.run(scenario())
    said = capfd.readouterr().err
    assert said.count(f"is not the gate: its certificate is of '{who}', not 'node-host'") == 1


def test_an_authority_that_is_not_ours(
    certificates: Certificates, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    foreign = Certificates(tmp_path)
    foreign.make("node-host")

    async def scenario() -> None:
        async with listening(foreign.of("node-host")) as gate:
            forwarder = Forwarder("n1", lambda name, reaches: None, lambda *_: None, lambda: certificates.of("node-n1"))
            await forwarder.set("toy", 0, 1, gate.address, "host")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gate.headers.get(), 1.0)
            forwarder.close()

    asyncio.run(scenario())
    assert capfd.readouterr().err.count("no TLS with the gate at") == 1


def test_a_plain_gate_is_not_spoken_to(certificates: Certificates) -> None:
    async def scenario() -> None:
        async with listening(None) as gate:
            header = await tries(gate, certificates.of("node-n1"), "host")
            # a TLS greeting may have ended in what a plain listener takes for a line; it does not contain our identity
            assert header is None or b"node" not in header

    asyncio.run(scenario())
