"""The leader's store: what is kept, and for how long."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from supervisor.shell.code.store import NEWEST, UNNAMED_S, CodeStore
from supervisor.wire import code
from supervisor.wire.code import File, Manifest


def framed(*contents: bytes) -> tuple[io.BytesIO, int]:
    body = b"".join(code.head(code.digest_of(each), len(each)) + each for each in contents)
    return io.BytesIO(body), len(body)


def manifest(*contents: bytes) -> bytes:
    files = (File(f"f{n}", False, len(each), code.digest_of(each)) for n, each in enumerate(contents))
    return Manifest(tuple(files)).encode()


def test_what_is_missing_is_what_did_not_come(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    wanted = manifest(b"a", b"b", b"b")
    assert store.missing(wanted) == [code.digest_of(b"a"), code.digest_of(b"b")]
    store.put(*framed(b"a"))
    assert store.missing(wanted) == [code.digest_of(b"b")]
    store.put(*framed(b"b"))
    assert store.missing(wanted) == []
    assert store.sizes([code.digest_of(b"a"), code.digest_of(wanted)]) == {
        code.digest_of(b"a"): 1,
        code.digest_of(wanted): len(wanted),
    }
    assert store.sizes([code.digest_of(b"z")]) is None


def test_what_a_power_cut_left_is_missing(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    store.put(*framed(b"abc"))
    (tmp_path / "blobs" / code.digest_of(b"abc")[:2] / code.digest_of(b"abc")).write_bytes(b"")
    assert store.missing(manifest(b"abc")) == [code.digest_of(b"abc")]


@pytest.mark.parametrize("lost", [1, 30, 43])
def test_a_torn_request_keeps_what_came_whole(tmp_path: Path, lost: int) -> None:
    store = CodeStore(tmp_path)
    body, size = framed(b"first", b"xyz")
    with pytest.raises(code.Torn):
        store.put(io.BytesIO(body.getvalue()[:-lost]), size)
    assert store.missing(manifest(b"first", b"xyz")) == [code.digest_of(b"xyz")]
    assert [path.name for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == [code.digest_of(b"first")]


def test_a_content_that_is_longer_than_the_request_is_not_taken(tmp_path: Path) -> None:
    body, size = framed(b"first")
    with pytest.raises(code.Torn):
        CodeStore(tmp_path).put(body, size - 1)


def test_versions_that_no_run_names_go_and_their_contents_with_them(tmp_path: Path) -> None:
    bodies = [manifest(b"shared", f"{n}".encode()) for n in range(NEWEST + 3)]
    store = CodeStore(tmp_path, lambda: {code.digest_of(bodies[0])})
    for number, body in enumerate(bodies):
        store.missing(body)
        store.put(*framed(b"shared", f"{number}".encode()))
        os.utime(tmp_path / "manifests" / code.digest_of(body), (number, number))
    for path in (tmp_path / "blobs").rglob("*"):
        os.utime(path, (1.0, time.time() - 2 * UNNAMED_S))
    young = code.digest_of(b"2")
    os.utime(tmp_path / "blobs" / young[:2] / young)
    store.tidy()
    kept = {path.name for path in (tmp_path / "manifests").iterdir()}
    assert code.digest_of(bodies[0]) in kept, "a run names it"
    assert kept == {code.digest_of(bodies[n]) for n in (0, *range(3, NEWEST + 3))}
    gone = [n for n in range(NEWEST + 3) if store.sizes([code.digest_of(f"{n}".encode())]) is None]
    assert gone == [1], "2 is young: a client may still be sending the rest"
    assert store.sizes([code.digest_of(b"shared")]) is not None


def test_nothing_goes_while_it_is_unknown_what_runs_name(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, lambda: None)
    for number in range(NEWEST + 3):
        store.missing(manifest(f"{number}".encode()))
    store.tidy()
    assert len(list((tmp_path / "manifests").iterdir())) == NEWEST + 3
