"""A served store of code, as the leader has it, and folders of code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.shell.code.scan import scan
from supervisor.shell.web.server import Server, serve, url_of
from supervisor.shell.web.watcher import Page
from supervisor.wire import code
from supervisor.wire.code_client import CodeClient
from supervisor.wire.security import Security


def written(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes files below a folder, which it makes."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


class CodeSite:
    """A listener with a store, and a client of it."""

    def __init__(self, server: Server, system: Path, security: Security) -> None:
        self.server, self.system = server, system
        self.page = server.page
        self.url = url_of(server)
        self.client = CodeClient(self.url, security)

    @property
    def blobs(self) -> list[Path]:
        return sorted(path for path in (self.system / "code" / "blobs").rglob("*") if path.is_file())

    def sync(self, folder: Path) -> str:
        """Puts a folder into the store. Returns its version."""
        found = scan(folder, 2**30)
        body = found.manifest.encode()
        files = {file.digest: file for file in found.manifest.files}
        self.client.put(found.folder, [files[digest] for digest in self.client.missing(body)])
        return code.digest_of(body)


@contextlib.contextmanager
def code_site(
    system: Path, listener: Security | None = None, client: Security | None = None, address: str = "127.0.0.1"
) -> Iterator[CodeSite]:
    page = Page(MemoryStore())
    server = serve(CollectorRegistry(), page, address, 0, listener or Security(), system)
    try:
        yield CodeSite(server, system, client or Security())
    finally:
        server.shutdown()
        server.server_close()


def mode(path: Path) -> int:
    return os.stat(path).st_mode & 0o777
