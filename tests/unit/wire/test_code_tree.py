"""Trees of code, fetched from a real listener: whole or not at all, and only what is new."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core.model.code import CodeVersion
from supervisor.wire import code
from supervisor.wire.code_client import CodeClient, StoreError
from supervisor.wire.code_tree import DIGITS, KEPT, Tree, Trees
from supervisor.wire.security import Security
from tests.helpers.code_site import CodeSite, code_site, mode, written

FILES = {"train.py": "print(1)\n", "pkg/__init__.py": "", "pkg/other/__init__.py": "", "pkg/model.py": "V = 1\n"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CodeSite]:
    with code_site(tmp_path / "system") as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = written(tmp_path / "code", FILES)
    (made / "train.py").chmod(0o755)
    (made / "link.py").symlink_to("pkg/model.py")
    return made


def contents(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


class Cut:
    """A listener before another that ends each connection after a number of bytes of answers."""

    def __init__(self, site: CodeSite, after: int) -> None:
        self._port, self._after = site.server.server_port, after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with near, socket.create_connection(("127.0.0.1", self._port)) as far:
                threading.Thread(target=self._pass, args=(near, far), daemon=True).start()
                left = self._after
                while left and (part := far.recv(min(left, 65536))):
                    near.sendall(part)
                    left -= len(part)
                for each in (near, far):
                    each.shutdown(socket.SHUT_RDWR)

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while part := near.recv(65536):
                far.sendall(part)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_a_tree_is_what_was_synced(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees, version = Trees(tmp_path / "node"), site.sync(folder)
    assert not trees.has(version)
    trees.fetch(site.client, version)
    assert trees.has(version)
    tree = trees.at(version)
    assert contents(tree) == contents(folder)
    assert os.readlink(tree / "link.py") == "pkg/model.py"
    assert (mode(tree / "train.py"), mode(tree / "pkg/model.py")) == (0o500, 0o400)
    assert Trees(tmp_path / "node").has(version), "the next agent finds it"


def test_only_what_is_new_travels(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees, first = Trees(tmp_path / "node"), site.sync(folder)
    trees.fetch(site.client, first)
    before = len(site.blobs)
    (folder / "pkg/model.py").write_text("V = 2\n")
    second = site.sync(folder)
    assert len(site.blobs) == before + 1
    asked: list[str] = []
    real = site.client.get
    site.client.get = lambda digests: (asked.extend(digests), real(digests))[1]  # type: ignore[method-assign]
    trees.fetch(site.client, second)
    assert asked == [second, code.digest_of(b"V = 2\n")], "the manifest and one file"
    assert (trees.at(first) / "pkg/model.py").read_text() == "V = 1\n"
    assert (trees.at(second) / "pkg/model.py").read_text() == "V = 2\n"
    assert os.path.samefile(trees.at(first) / "train.py", trees.at(second) / "train.py")


def test_a_file_that_was_written_to_on_the_node_is_not_used_again(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees = Trees(tmp_path / "node")
    trees.fetch(site.client, site.sync(folder))
    first = site.sync(folder)
    path = trees.at(first) / "train.py"
    path.chmod(0o700)
    path.write_text("print(666)\n"[: len(FILES["train.py"])])
    path.chmod(0o500)
    (folder / "more.py").write_text("")
    second = site.sync(folder)
    trees.fetch(site.client, second)
    assert contents(trees.at(second)) == contents(folder)


@pytest.mark.parametrize("after", [0, 300, 400, 500, 600])
def test_a_torn_transfer_leaves_no_tree_and_the_next_try_goes_on(
    site: CodeSite, folder: Path, tmp_path: Path, after: int
) -> None:
    written(folder, {"big.bin": "x" * 300})
    trees, version = Trees(tmp_path / "node"), site.sync(folder)
    cut = Cut(site, after)
    with pytest.raises(StoreError):
        trees.fetch(CodeClient(cut.url, Security()), version)
    cut.close()
    assert not trees.has(version)
    trees.fetch(site.client, version)
    assert contents(trees.at(version)) == contents(folder)
    assert {entry.name for entry in (tmp_path / "node").iterdir()} == {version[:DIGITS], "manifests"}


def test_a_store_that_lost_a_file_says_what_to_do(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees, version = Trees(tmp_path / "node"), site.sync(folder)
    site.blobs[0].unlink()
    with pytest.raises(StoreError, match="run `supervisor sync` again"):
        trees.fetch(site.client, version)
    assert site.sync(folder) == version, "it sends what is lost"
    trees.fetch(site.client, version)


def test_a_store_with_other_bytes_gives_no_tree(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees, version = Trees(tmp_path / "node"), site.sync(folder)
    blob = next(path for path in site.blobs if path.stat().st_size)
    blob.write_bytes(b"!" * blob.stat().st_size)
    with pytest.raises(StoreError, match="other bytes"):
        trees.fetch(site.client, version)
    assert not trees.has(version)


def test_what_a_power_cut_left_of_a_tree_is_fetched_again(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees, version = Trees(tmp_path / "node"), site.sync(folder)
    trees.fetch(site.client, version)
    path = trees.at(version) / "pkg/model.py"
    path.unlink()
    path.touch()
    after = Trees(tmp_path / "node")
    assert not after.has(version)
    after.fetch(site.client, version)
    assert contents(after.at(version)) == contents(folder)


def test_old_trees_go(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees, versions = Trees(tmp_path / "node"), []
    for number in range(KEPT + 3):
        (folder / "train.py").write_text(f"print({number})\n")
        versions.append(site.sync(folder))
        trees.fetch(site.client, versions[-1])
        os.utime(trees.at(versions[-1]), (number, number))
    trees.keep({versions[0]})
    assert [trees.has(version) for version in versions] == [True, False, False, True, True, True]
    assert len(list((tmp_path / "node" / "manifests").iterdir())) == 4


@contextlib.contextmanager
def process_of(tree: Path) -> Iterator[None]:
    """Runs a process that was started from a tree."""
    environment = Tree(CodeVersion(version="0" * 64), tree).first_in({}, os.environ)
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **environment}) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_tree_from_which_a_process_runs_stays_though_it_was_changed(
    site: CodeSite, folder: Path, tmp_path: Path
) -> None:
    trees, version = Trees(tmp_path / "node"), site.sync(folder)
    trees.fetch(site.client, version)
    path = trees.at(version) / "train.py"
    path.chmod(0o700)
    path.write_text("# a line of a log\n")
    with process_of(trees.at(version)):
        assert Trees(tmp_path / "node").has(version)
        assert path.exists()
    after = Trees(tmp_path / "node")
    assert not after.has(version), "else it is fetched again"
    after.fetch(site.client, version)
    assert contents(after.at(version)) == contents(folder)


def test_old_trees_from_which_a_process_runs_stay(site: CodeSite, folder: Path, tmp_path: Path) -> None:
    trees, versions = Trees(tmp_path / "node"), []
    for number in range(KEPT + 2):
        (folder / "train.py").write_text(f"print({number})\n")
        versions.append(site.sync(folder))
        trees.fetch(site.client, versions[-1])
        os.utime(trees.at(versions[-1]), (number, number))
    with process_of(trees.at(versions[0])):
        trees.keep(set())
    there = [trees.at(version).is_dir() for version in versions]
    assert there == [True, False, True, True, True]
    trees.keep(set())
    assert not trees.at(versions[0]).is_dir()


def test_the_tree_stands_for_the_folder(tmp_path: Path) -> None:
    tree = Tree(CodeVersion(version="0" * 64, folder="/home/me/code"), tmp_path)
    assert tree.place_of("/home/me/code") == str(tmp_path)
    assert tree.place_of("/home/me/code/sub") == str(tmp_path / "sub")
    assert tree.place_of("/home/me/codes") == "/home/me/codes"
    assert tree.place_of("") == ""
    assert tree.first_in({}, {}) == {"PYTHONPATH": str(tmp_path)}
    assert tree.first_in({}, {"PYTHONPATH": "/own"}) == {"PYTHONPATH": f"{tmp_path}:/own"}
    assert tree.first_in({}, {"PYTHONPATH": "/own"}, ["PYTHON*"]) == {"PYTHONPATH": str(tmp_path)}
    assert tree.first_in({"PYTHONPATH": "/set"}, {"PYTHONPATH": "/own"}) == {"PYTHONPATH": f"{tmp_path}:/set"}
