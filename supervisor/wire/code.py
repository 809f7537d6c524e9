"""The manifest of a version of the code, and the form in which its files travel (ADR 24)."""

from __future__ import annotations

import hashlib
import json
import posixpath
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MISSING, PUT, OFFER, GET = "/code/missing", "/code/put", "/code/offer", "/code/get"
"""Paths of the leader's listener. missing: takes a manifest, answers the digests that the store lacks, as JSON. put: takes
frames. offer: as put, of a node. get: takes digests, a line each, and answers frames in that order."""

MANIFEST_BYTES = 64 * 2**20
"""Most bytes of a manifest: some 400,000 files."""

CHUNK = 1 << 20

_FRAME = struct.Struct(">32sQ")
"""A frame: SHA-256, size, and as many bytes."""


class BadManifest(ValueError):
    """A manifest that no client of ours writes."""


class Torn(OSError):
    """A transfer that ended early, or brought other bytes than it should have."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a version."""

    path: str
    """Relative to the folder, with slashes."""
    executable: bool
    size: int
    digest: str
    """SHA-256 of its content, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link of a version; it stays inside the folder."""

    path: str
    target: str


@dataclass(frozen=True)
class Manifest:
    """All files of a version."""

    files: tuple[File, ...]
    links: tuple[Link, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def digests(self) -> dict[str, int]:
        """Returns the sizes of its contents by digest, each once."""
        return {file.digest: file.size for file in self.files}

    def encode(self) -> bytes:
        """Returns its bytes, the same for the same tree; their SHA-256 is the version."""
        files = sorted([f.path, int(f.executable), f.size, f.digest] for f in self.files)
        links = sorted([link.path, link.target] for link in self.links)
        return json.dumps({"files": files, "links": links}, separators=(",", ":")).encode()


def decode(body: bytes) -> Manifest:
    """Reads `Manifest.encode`. Raises BadManifest, also for a path that leads out of the folder."""
    try:
        found = json.loads(body)
        files = tuple(
            File(str(path), bool(mode), int(size), str(digest)) for path, mode, size, digest in found["files"]
        )
        links = tuple(Link(str(path), str(target)) for path, target in found["links"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadManifest(f"not a manifest: {error}") from error
    paths = [*(file.path for file in files), *(link.path for link in links)]
    through = {link.path for link in links}
    for path in paths:
        if not is_inside(path) or through.intersection(_parents(path)):
            raise BadManifest(f"{path!r} is no path inside a folder")
    if wrong := next((link for link in links if not is_inside(_pointed(link))), None):
        raise BadManifest(f"the link {wrong.path!r} leads out of the folder")
    if wrong_file := next((f for f in files if f.size < 0 or not is_digest(f.digest)), None):
        raise BadManifest(f"{wrong_file.path!r} has no size or digest")
    if len(set(paths)) != len(paths):
        raise BadManifest("a path is there twice")
    return Manifest(files, links)


def is_digest(text: str) -> bool:
    """Returns true for a SHA-256 in hexadecimal."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def is_inside(path: str) -> bool:
    """Returns true for a relative path that stays below where it begins; `.` alone does, too."""
    return (
        bool(path) and "\0" not in path and not path.startswith("/") and posixpath.normpath(path).split("/")[0] != ".."
    )


def _pointed(link: Link) -> str:
    if link.target.startswith("/"):
        return link.target
    return posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.target))


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def digest_of(body: bytes) -> str:
    """Returns the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(body).hexdigest()


# --- frames ---


def frames_bytes(sizes: Iterable[int]) -> int:
    """Returns the bytes that frames with contents of these sizes take."""
    return sum(size + _FRAME.size for size in sizes)


def head(digest: str, size: int) -> bytes:
    """Returns the first bytes of a frame."""
    return _FRAME.pack(bytes.fromhex(digest), size)


def read_head(source: BinaryIO) -> tuple[str, int]:
    """Returns digest and size of the frame that begins here. Raises Torn."""
    found = source.read(_FRAME.size)
    if len(found) < _FRAME.size:
        raise Torn("the transfer ended early")
    digest, size = _FRAME.unpack(found)
    return digest.hex(), size


def write_content(
    source: BinaryIO, digest: str, size: int, to: Path, finish: Callable[[int], None] | None = None
) -> None:
    """Writes the content of a frame to a file, whole or not at all. `finish` gets the open descriptor before the file gets
    its name. Raises Torn if it ends early or has another digest, OSError."""
    handle, name = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name[:100]}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with open(handle, "wb") as file:
            copy_content(source, digest, size, file.write)
            file.flush()
            if finish is not None:
                finish(file.fileno())
        temporary.replace(to)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def copy_content(source: BinaryIO, digest: str, size: int, write: Callable[[bytes], object]) -> None:
    """Passes the content of a frame on. Raises Torn if it ends early or has another digest."""
    seen, left = hashlib.sha256(), size
    while left:
        part = source.read(min(left, CHUNK))
        if not part:
            raise Torn("the transfer ended early")
        left -= len(part)
        seen.update(part)
        write(part)
    if seen.hexdigest() != digest:
        raise Torn(f"other bytes than those of {digest[:12]} came")
