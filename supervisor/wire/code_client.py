"""Reaches the leader's store of code, from a person's machine or a node (ADR 24)."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from supervisor.wire import code
from supervisor.wire.security import SUPERVISOR, Reloading, Security, SecurityError, common_name, is_loopback

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""Seconds without a byte after which a transfer has failed."""

SENTENCE_BYTES = 2000
"""Most bytes of a refusal that are read."""


class StoreError(Exception):
    """The store cannot be reached, or refuses; the text says why, and what to do."""


class Refused(StoreError):
    """A refusal by the store; its text says what to do, where anything helps."""


class CodeClient:
    """The store at one supervisor. Each call is a connection of its own."""

    def __init__(self, page: str, security: Security) -> None:
        """`page`: URL of the supervisor's listener, as its leader's record has it."""
        self._page = page.rstrip("/")
        self._security = security

    def missing(self, manifest: bytes) -> tuple[str, ...]:
        """Returns the digests of a manifest's contents that the store lacks; it keeps the manifest. Raises StoreError."""
        with self._asked(code.MISSING, manifest, len(manifest)) as answer:
            return tuple(map(str, json.loads(answer.read())))

    def put(self, folder: Path, files: Sequence[code.File], path: str = code.PUT) -> None:
        """Sends the contents of files below a folder. What arrived stays there if it is interrupted. `path`: PUT or OFFER.
        Raises StoreError, OSError."""
        size = code.frames_bytes(file.size for file in files)
        with self._asked(path, _frames(folder, files), size) as answer:
            answer.read()

    @contextlib.contextmanager
    def get(self, digests: Sequence[str]) -> Iterator[BinaryIO]:
        """Opens the frames of these digests, in this order. Raises StoreError, also while they are read."""
        body = "\n".join(digests).encode()
        with self._asked(code.GET, body, len(body)) as answer:
            yield cast(BinaryIO, answer)

    def manifest(self, version: str) -> bytes:
        """Returns the manifest of a version. Raises StoreError, Torn."""
        parts: list[bytes] = []
        with self.get([version]) as stream:
            _, size = code.read_head(stream)
            if size > code.MANIFEST_BYTES:
                raise StoreError(f"the manifest of code {version[:12]} has {size} bytes")
            code.copy_content(stream, version, size, parts.append)
        return b"".join(parts)

    @contextlib.contextmanager
    def _asked(self, path: str, body: bytes | Iterator[bytes], size: int) -> Iterator[http.client.HTTPResponse]:
        """Sends a request, and yields an answer that is no refusal."""
        try:
            with contextlib.closing(self._connection()) as connection:
                try:
                    connection.request("POST", path, body, {"Content-Length": str(size)})
                except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                    pass  # it refuses before it has read all: the answer says why
                answer = connection.getresponse()
                if answer.status != HTTPStatus.OK:
                    said = answer.read(SENTENCE_BYTES).decode(errors="replace").strip()
                    raise Refused(f"the supervisor at {self._page} says: {said or answer.reason}")
                yield answer
        except code.Torn as error:
            raise StoreError(f"the transfer with the supervisor at {self._page} broke off: {error}") from error
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise StoreError(
                f"no transfer with the supervisor at {self._page}: {error or type(error).__name__}{self._hint()}"
            ) from error
        except ValueError as error:
            raise StoreError(f"the supervisor at {self._page} answers something else: {error}") from error

    def _connection(self) -> http.client.HTTPConnection:
        url = urlsplit(self._page)
        host, port = url.hostname or "", url.port
        if url.scheme != "https":
            connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
            return _connected(connection, self._page, self._hint())
        try:
            secure = http.client.HTTPSConnection(
                host, port, timeout=PATIENCE_S, context=Reloading(self._security).context()
            )
        except SecurityError as error:
            raise StoreError(str(error)) from error
        _connected(secure, self._page, self._hint())
        if (name := common_name(cast(ssl.SSLSocket, secure.sock))) != SUPERVISOR:
            secure.close()
            raise StoreError(f"{self._page} shows the certificate of {name!r}, not of {SUPERVISOR!r}")
        return secure

    def _hint(self) -> str:
        if is_loopback(urlsplit(self._page).hostname or ""):
            return "; it listens on loopback alone: start it with --metrics-address"
        return ""


def _connected(connection: http.client.HTTPConnection, page: str, hint: str) -> http.client.HTTPConnection:
    try:
        connection.connect()
    except OSError as error:
        raise StoreError(f"the supervisor at {page} cannot be reached: {error.strerror or error}{hint}") from error
    return connection


def _frames(folder: Path, files: Sequence[code.File]) -> Iterator[bytes]:
    """Yields the frames of files. Raises StoreError if one is not what it was."""
    for file in files:
        yield code.head(file.digest, file.size)
        with (folder / file.path).open("rb") as source:
            left = file.size
            while left:
                part = source.read(min(left, code.CHUNK))
                if not part:
                    raise StoreError(f"{folder / file.path} changed while it was sent: repeat this")
                left -= len(part)
                yield part
