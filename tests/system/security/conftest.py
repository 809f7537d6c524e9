from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.helpers.tls import TlsEtcd
from tests.system.security.world import authed_etcd


@pytest.fixture(scope="session", autouse=True)
def _openssl() -> None:
    if shutil.which("openssl") is None:
        pytest.skip(
            "no openssl (Debian: apt-get install openssl): deploy/certificates.sh makes the certificates with it"
        )


@pytest.fixture(scope="session")
def authed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsEtcd]:
    """One etcd with TLS and our roles for all tests that do not restart it."""
    with authed_etcd(tmp_path_factory.mktemp("authed")) as server:
        yield server
