"""The leader's store of code: contents and manifests by hash, in one folder (ADR 24)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from supervisor.wire import code

NEWEST = 8
"""Versions that are kept, the newest ones, though no run names them any more."""

UNNAMED_S = 3600.0
"""Seconds for which contents are kept that no version names: a client may still be sending the rest."""


class CodeStore:
    """Contents by hash. Threads may share it."""

    def __init__(self, folder: Path, wanted: Callable[[], Collection[str] | None] = lambda: None) -> None:
        """`wanted`: the versions that a run or pool names; None while that is unknown, and nothing is removed."""
        self.folder = folder
        self._blobs, self._manifests = folder / "blobs", folder / "manifests"
        self.wanted = wanted
        self._tidying = threading.Lock()

    def missing(self, body: bytes) -> list[str]:
        """Keeps a manifest, and returns which of its contents are not here. Raises BadManifest, OSError."""
        manifest = code.decode(body)
        self.tidy()
        self._manifests.mkdir(parents=True, exist_ok=True)
        path = self._manifests / code.digest_of(body)
        temporary = path.with_name(f".{path.name}.{threading.get_ident()}.tmp")
        temporary.write_bytes(body)
        temporary.replace(path)
        return [digest for digest, size in manifest.digests().items() if _size(self._path(digest)) != size]

    def named(self) -> set[str]:
        """Returns the contents of the versions that a run or pool names, as far as their manifests are here."""
        found: set[str] = set()
        for version in self.wanted() or ():
            with suppress(OSError, code.BadManifest):
                found.update(code.decode((self._manifests / version).read_bytes()).digests())
        return found

    def put(self, source: BinaryIO, size: int, only: Collection[str] | None = None) -> None:
        """Keeps the contents that `size` bytes of frames bring; each is whole, or not there. `only`: the digests that may
        come. Raises Torn, BadManifest for another digest, OSError."""
        left = size
        while left > 0:
            if left < code.frames_bytes([0]):
                raise code.Torn("the request ended early")
            digest, length = code.read_head(source)
            left -= code.frames_bytes([length])
            if left < 0:
                raise code.Torn("a content is longer than the request")
            if only is not None and digest not in only:
                raise code.BadManifest(f"content {digest[:12]} is of no version that a run or pool names")
            path = self._path(digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            code.write_content(source, digest, length, path)

    def sizes(self, digests: Collection[str]) -> dict[str, int] | None:
        """Returns the sizes of contents or manifests; None if one is not here."""
        found = {digest: _size(self._place(digest)) for digest in digests}
        return (
            {digest: size for digest, size in found.items() if size is not None} if None not in found.values() else None
        )

    def open(self, digest: str) -> BinaryIO:
        """Opens a content or manifest. Raises OSError."""
        return self._place(digest).open("rb")

    def tidy(self) -> None:
        """Removes versions that no run names, but for the NEWEST, and contents that no version names any more."""
        wanted = self.wanted()
        if wanted is None or not self._tidying.acquire(blocking=False):
            return
        try:
            manifests = sorted(_files(self._manifests), key=lambda path: -path.stat().st_mtime)
            dropped = [path for path in manifests[NEWEST:] if path.name not in wanted]
            if not dropped:
                return
            for path in dropped:
                path.unlink(missing_ok=True)
            named = {
                file.digest
                for path in manifests
                if path not in dropped
                for file in code.decode(path.read_bytes()).files
            }
            old = time.time() - UNNAMED_S
            for folder in _entries(self._blobs):
                for path in _files(folder):
                    if path.name not in named and path.stat().st_mtime < old:
                        path.unlink(missing_ok=True)
        except (OSError, code.BadManifest):
            pass  # it is tried again with the next version
        finally:
            self._tidying.release()

    def _path(self, digest: str) -> Path:
        return self._blobs / digest[:2] / digest

    def _place(self, digest: str) -> Path:
        manifest = self._manifests / digest
        return manifest if manifest.exists() else self._path(digest)


def _size(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_size
    return None


def _entries(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from (Path(entry) for entry in os.scandir(folder))


def _files(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if code.is_digest(path.name)]
