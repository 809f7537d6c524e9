"""Manifests, and frames that end early or bring something else."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path

import pytest

from supervisor.wire import code
from supervisor.wire.code import BadManifest, File, Link, Manifest, Torn

A, B = code.digest_of(b"a"), code.digest_of(b"b")


def test_a_version_is_that_of_the_tree_whatever_the_order() -> None:
    first = Manifest((File("a", False, 1, A), File("b/c", True, 1, B)), (Link("l", "a"),))
    other = Manifest((File("b/c", True, 1, B), File("a", False, 1, A)), (Link("l", "a"),))
    assert first.encode() == other.encode()
    assert sorted(code.decode(first.encode()).files, key=lambda f: f.path) == [*first.files]
    assert first.size == 2
    different = [
        Manifest((File("a", True, 1, A), File("b/c", True, 1, B)), (Link("l", "a"),)),
        Manifest((File("a", False, 1, B), File("b/c", True, 1, B)), (Link("l", "a"),)),
        Manifest((File("z", False, 1, A), File("b/c", True, 1, B)), (Link("l", "a"),)),
        Manifest((File("a", False, 1, A), File("b/c", True, 1, B)), (Link("l", "b/c"),)),
    ]
    assert len({first.encode(), *(each.encode() for each in different)}) == 5


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest((File("/etc/passwd", False, 1, A),)),
        Manifest((File("../x", False, 1, A),)),
        Manifest((File("a/../../x", False, 1, A),)),
        Manifest((File("", False, 1, A),)),
        Manifest((File("x\0y", False, 1, A),)),
        Manifest((File("x", False, -1, A),)),
        Manifest((File("x", False, 1, "A" * 64),)),
        Manifest((File("x", False, 1, A), File("x", False, 1, B))),
        Manifest((), (Link("l", "/etc"),)),
        Manifest((), (Link("l", "../x"),)),
        Manifest((), (Link("a/l", "../../x"),)),
        Manifest((File("l/x", False, 1, A),), (Link("l", "."),)),
    ],
)
def test_a_path_that_leads_out_of_the_folder_is_no_manifest(manifest: Manifest) -> None:
    with pytest.raises(BadManifest):
        code.decode(manifest.encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"files":[[1]],"links":[]}', b'{"files":{},"links":3}'])
def test_other_bytes_are_no_manifest(body: bytes) -> None:
    with pytest.raises(BadManifest):
        code.decode(body)


def framed(content: bytes, digest: str | None = None) -> io.BytesIO:
    return io.BytesIO(code.head(digest or code.digest_of(content), len(content)) + content)


def test_a_content_is_written_whole(tmp_path: Path) -> None:
    source = framed(b"x" * (code.CHUNK + 7))
    digest, size = code.read_head(source)
    code.write_content(source, digest, size, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"x" * size
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("lost", [1, 5, 44])
def test_a_content_that_ends_early_is_not_there(tmp_path: Path, lost: int) -> None:
    source = io.BytesIO(framed(b"hello").getvalue()[:-lost])
    with pytest.raises(Torn):
        code.write_content(source, *code.read_head(source), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_content_with_other_bytes_is_not_there(tmp_path: Path) -> None:
    source = framed(b"evil", A)
    with pytest.raises(Torn):
        code.write_content(source, *code.read_head(source), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("second_is_whole", [True, False])
def test_two_transfers_of_one_content_at_a_time(tmp_path: Path, second_is_whole: bool) -> None:
    content = b"x" * (code.CHUNK + 7)
    size, digest = len(content), code.digest_of(content)
    second = framed(content if second_is_whole else content[:-1], digest)
    second.read(len(code.head(digest, size)))

    class First(io.BytesIO):
        def read(self, most: int | None = -1, /) -> bytes:
            if self.tell() == code.CHUNK:  # the other one comes and goes in the middle
                with nullcontext() if second_is_whole else pytest.raises(Torn):
                    code.write_content(second, digest, size, tmp_path / "x")
            return super().read(most)

    code.write_content(First(content), digest, size, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
