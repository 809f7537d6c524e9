"""An authority in memory: its members believe each other at their addresses, and no one else."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from supervisor.shell.enroll.ephemeral import Authority
from supervisor.wire import monarch


def context(side: int, folder: Path, pems: dict[str, str]) -> ssl.SSLContext:
    files = monarch.settle(folder, pems)
    made = ssl.SSLContext(side)
    made.load_verify_locations(files["HYPERACTOR_TLS_CA"])
    made.load_cert_chain(files["HYPERACTOR_TLS_CERT"], files["HYPERACTOR_TLS_KEY"])
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def shakes(server: ssl.SSLContext, client: ssl.SSLContext, address: str) -> None:
    """Raises SSLError if one does not believe the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=address)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("address", ["10.0.0.5", "fd00::5", "node-5.cluster"])
def test_members_believe_each_other_at_their_addresses(address: str, tmp_path: Path) -> None:
    made = Authority()
    server = context(ssl.PROTOCOL_TLS_SERVER, tmp_path / "server", made.pems("n1", address))
    client = context(ssl.PROTOCOL_TLS_CLIENT, tmp_path / "client", made.pems("client", "10.0.0.1"))
    shakes(server, client, address)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shakes(server, client, "10.0.0.9")


def test_no_one_else_is_believed(tmp_path: Path) -> None:
    server = context(ssl.PROTOCOL_TLS_SERVER, tmp_path / "server", Authority().pems("n1", "10.0.0.5"))
    other = Authority().pems("client", "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shakes(server, context(ssl.PROTOCOL_TLS_CLIENT, tmp_path / "other", other), "10.0.0.5")


def test_a_member_signs_for_no_one(tmp_path: Path) -> None:
    """Its certificate is no authority's, and the key of the authority is in none of its files."""
    made = Authority()
    first, second = made.pems("n1", "10.0.0.5"), made.pems("n2", "10.0.0.6")
    assert first["ca"] == second["ca"] != first["cert"]
    assert first["key"] != second["key"]
    assert all("PRIVATE" not in first[name] for name in ("ca", "cert"))
