"""Rights to put and get code at a supervisor's listener."""

from __future__ import annotations

import errno
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.shell.code.scan import scan
from supervisor.shell.code.store import CodeStore
from supervisor.shell.metrics import listener
from supervisor.wire import code
from supervisor.wire.code_client import CodeClient, StoreError
from supervisor.wire.code_tree import Trees
from supervisor.wire.security import Security
from tests.helpers.authority import Authority, authority
from tests.helpers.code_site import CodeSite, code_site, written


@pytest.fixture
def made(tmp_path: Path) -> Authority:
    found = authority(tmp_path / "authority")
    for name in ("supervisor", "root", "reader", "node-n1", "node-n2"):
        found.make(name)
    return found


@pytest.fixture
def site(tmp_path: Path, made: Authority) -> Iterator[CodeSite]:
    with code_site(tmp_path / "system", made.security("supervisor"), made.security("supervisor")) as found:
        found.page.granted = frozenset({"n1"})
        yield found


def client(site: CodeSite, made: Authority, name: str) -> CodeClient:
    return CodeClient(site.url.replace(site.url.split("/")[2].rpartition(":")[0], "127.0.0.1"), made.security(name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "code", {"a.py": "1"})


def test_operators_put_and_get(site: CodeSite, made: Authority, folder: Path) -> None:
    found = scan(folder, 1000)
    for name in ("supervisor", "root"):
        body = found.manifest.encode()
        client(site, made, name).missing(body)
        client(site, made, name).put(folder, found.manifest.files)
        assert client(site, made, name).manifest(code.digest_of(body)) == body


def test_a_node_that_was_given_gets_and_never_puts(site: CodeSite, made: Authority, folder: Path) -> None:
    version = site.sync(folder)
    node = client(site, made, "node-n1")
    assert code.decode(node.manifest(version)).files
    with pytest.raises(StoreError, match="no run or pool names this code"):
        node.missing(scan(folder, 1000).manifest.encode())
    with pytest.raises(StoreError, match="may not put code"):
        node.put(folder, scan(folder, 1000).manifest.files)
    with pytest.raises(StoreError, match="is of no version that a run or pool names"):
        node.put(folder, scan(folder, 1000).manifest.files, code.OFFER)


def test_a_node_offers_what_etcd_names_and_nothing_else(
    site: CodeSite, made: Authority, folder: Path, tmp_path: Path
) -> None:
    with code_site(tmp_path / "before", made.security("supervisor"), made.security("supervisor")) as before:
        trees, version = Trees(tmp_path / "n1"), before.sync(folder)
        trees.fetch(client(before, made, "supervisor"), version)
    node = client(site, made, "node-n1")
    with pytest.raises(StoreError, match="no run or pool names this code"):
        trees.offer(node, version)
    site.page.codes = frozenset({version})
    other = scan(written(tmp_path / "other", {"a.py": "666"}), 1000).manifest.files
    node.missing(scan(folder, 1000).manifest.encode())
    with pytest.raises(StoreError, match="is of no version that a run or pool names"):
        node.put(tmp_path / "other", other, code.OFFER)
    assert site.blobs == []
    assert (trees.offer(node, version), trees.offer(node, version)) == (1, 0)
    Trees(tmp_path / "n2").fetch(client(site, made, "node-n1"), version)


def test_one_node_sends_at_a_time(site: CodeSite, made: Authority, folder: Path) -> None:
    assert site.server.code is not None
    site.page.codes = frozenset({code.digest_of(scan(folder, 1000).manifest.encode())})
    node, files = client(site, made, "node-n1"), scan(folder, 1000).manifest.files
    node.missing(scan(folder, 1000).manifest.encode())
    with site.server.code._offered, pytest.raises(StoreError, match="another node sends code: ask again"):
        node.put(folder, files, code.OFFER)
    node.put(folder, files, code.OFFER)
    assert len(site.blobs) == 1


@pytest.mark.parametrize("name", ["node-n2", "reader"])
def test_another_certificate_of_the_authority_gets_nothing(
    site: CodeSite, made: Authority, folder: Path, name: str
) -> None:
    version = site.sync(folder)
    with pytest.raises(StoreError, match="is no node that was given"):
        client(site, made, name).manifest(version)
    with pytest.raises(StoreError, match="may not put code"):
        client(site, made, name).missing(b"{}")


def test_a_listener_with_another_name_gets_no_code(tmp_path: Path, made: Authority, folder: Path) -> None:
    """A node that stands in for the leader would read it."""
    with code_site(tmp_path / "other", made.security("node-n1")) as site:
        with pytest.raises(StoreError, match="shows the certificate of 'node-n1'"):
            client(site, made, "supervisor").put(folder, scan(folder, 1000).manifest.files)
        assert site.blobs == []


def test_another_user_of_this_machine_gets_and_puts_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with code_site(tmp_path / "system") as site:
        version = site.sync(folder)
        monkeypatch.setattr(listener, "is_ours", lambda connection: False)
        with pytest.raises(StoreError, match="for the user who runs this supervisor"):
            site.client.manifest(version)
        with pytest.raises(StoreError, match="for the user who runs this supervisor"):
            site.client.missing(scan(folder, 1000).manifest.encode())


def asked(site: CodeSite, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", site.server.server_port, timeout=10.0)
    connection.request("POST", path, body or None, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_what_is_asked_wrongly_is_refused(tmp_path: Path, folder: Path) -> None:
    with code_site(tmp_path / "system") as site:
        site.sync(folder)
        assert asked(site, "/code/other", b"x")[0] == 404
        assert asked(site, code.MISSING, b"no manifest")[0] == 400
        assert asked(site, code.GET, b"../../etc/passwd")[0] == 404
        assert asked(site, code.GET, b"0" * 64)[0] == 404
        assert asked(site, code.PUT, b"short")[0] == 400
        assert asked(site, code.PUT, **{"Content-Length": "many"})[0] == 411
        assert asked(site, code.GET, b"x", Origin="https://evil.example")[0] == 403
        assert asked(site, "/", b"x")[0] == 405


def test_a_supervisor_without_a_store_takes_none(tmp_path: Path) -> None:
    with code_site(tmp_path / "system") as site:
        site.server.code = None
        assert asked(site, code.MISSING, b"{}")[0] == 405


def test_a_full_disk_is_named(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with code_site(tmp_path / "system") as site:
        monkeypatch.setattr(CodeStore, "put", full)
        with pytest.raises(StoreError, match=rf"No space left on device \({tmp_path}/system/code\): make room there"):
            site.client.put(folder, scan(folder, 1000).manifest.files)


def test_no_answer_is_a_sentence(tmp_path: Path) -> None:
    with code_site(tmp_path / "system") as site:
        url = site.url
    with pytest.raises(StoreError, match="cannot be reached: Connection refused; it listens on loopback alone"):
        CodeClient(url, Security()).missing(b"{}")
