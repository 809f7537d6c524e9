"""Answers requests for code at a supervisor's listener: clients put, nodes and clients get (ADR 24)."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import ssl
import threading
from collections.abc import Callable, Collection
from http import HTTPStatus

from supervisor.shell.code.store import CodeStore
from supervisor.shell.metrics.listener import Handler
from supervisor.wire import code
from supervisor.wire.security import ROOT, SUPERVISOR, common_name, node_name

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Transfers at once: each takes time of the process that may lead. Others wait."""

WAITS_S = 20.0
"""Seconds that a transfer waits for its turn; then it must be asked for again."""

DIGESTS_BYTES = 65 * 400_000
"""Most bytes of a list of digests, a line each."""


class Code:
    """A store, and who may use it: `supervisor` and `root` may do all. Nodes that a grant names may get, and offer what
    versions hold that a run or pool names: another supervisor may have led when those were synced."""

    def __init__(self, store: CodeStore, nodes: Callable[[], Collection[str]]) -> None:
        self._store, self._nodes = store, nodes
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._offered = threading.Lock()
        """Held while a node sends: hundreds have the same."""

    def answer(self, handler: Handler) -> None:
        """Answers a POST below /code/."""
        if why := self._refusal(handler):
            _say(handler, HTTPStatus.FORBIDDEN, why)
            return
        length = handler.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 15:
            _say(handler, HTTPStatus.LENGTH_REQUIRED, "give the length")
            return
        if not self._turns.acquire(timeout=WAITS_S):
            _say(handler, HTTPStatus.SERVICE_UNAVAILABLE, f"{AT_ONCE} transfers are under way: ask again")
            return
        try:
            self._do(handler, int(length))
        except (BrokenPipeError, ConnectionResetError, TimeoutError, ssl.SSLError) as error:
            log.debug("%s went away: %s", handler.client_address, error)
        except code.BadManifest as error:
            _say(handler, HTTPStatus.BAD_REQUEST, str(error))
        except code.Torn as error:
            _say(handler, HTTPStatus.BAD_REQUEST, f"{error}: repeat this, what arrived is kept")
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            status = HTTPStatus.INSUFFICIENT_STORAGE if full else HTTPStatus.INTERNAL_SERVER_ERROR
            log.warning("code cannot be kept or read: %s", error)
            _say(
                handler,
                status,
                f"its disk: {error.strerror} ({error.filename or self._store.folder}): make room there, then repeat this",
            )
        finally:
            self._turns.release()

    def _refusal(self, handler: Handler) -> str:
        security = handler.server.security
        if not security.tls:
            return "" if handler.is_for_us() else "code is for the user who runs this supervisor"
        who = common_name(handler.connection)
        if who in (SUPERVISOR, ROOT):
            return ""
        if handler.path != code.PUT and who in {node_name(node) for node in self._nodes()}:
            return ""
        if handler.path == code.GET:
            return f"{who!r} is no node that was given to a run or pool"
        return f"{who!r} may not put code here: only the certificates of {SUPERVISOR} and {ROOT} may"

    def _do(self, handler: Handler, length: int) -> None:
        if handler.path == code.MISSING and length <= code.MANIFEST_BYTES:
            body = _read(handler, length)
            if self._is_node(handler) and code.digest_of(body) not in (self._store.wanted() or ()):
                _say(handler, HTTPStatus.FORBIDDEN, "no run or pool names this code: a node may not offer it")
                return
            handler._send(HTTPStatus.OK, json.dumps(self._store.missing(body)).encode(), "application/json")
        elif handler.path == code.OFFER:
            self._take(handler, length)
        elif handler.path == code.PUT:
            self._store.put(handler.rfile, length)  # type: ignore[arg-type]
            _say(handler, HTTPStatus.OK, "kept")
        elif handler.path == code.GET and length <= DIGESTS_BYTES:
            self._get(handler, _read(handler, length).decode(errors="replace").split())
        else:
            _say(handler, HTTPStatus.NOT_FOUND, f"there is POST {code.MISSING}, {code.PUT}, {code.OFFER}, {code.GET}")

    def _is_node(self, handler: Handler) -> bool:
        return handler.server.security.tls and common_name(handler.connection) not in (SUPERVISOR, ROOT)

    def _take(self, handler: Handler, length: int) -> None:
        if not self._offered.acquire(blocking=False):
            _say(handler, HTTPStatus.SERVICE_UNAVAILABLE, "another node sends code: ask again what is missing")
            return
        try:
            self._store.put(handler.rfile, length, self._store.named())  # type: ignore[arg-type]
            _say(handler, HTTPStatus.OK, "kept")
        finally:
            self._offered.release()

    def _get(self, handler: Handler, digests: list[str]) -> None:
        sizes = self._store.sizes(digests) if all(map(code.is_digest, digests)) else None
        if sizes is None:
            sentence = (
                "it does not have all of this code; nodes that have it send it after a change of the leader; where none "
                "has, run `supervisor sync` again"
            )
            _say(handler, HTTPStatus.NOT_FOUND, sentence)
            return
        handler.send_response(HTTPStatus.OK)
        handler.send_header("Content-Type", "application/octet-stream")
        handler.send_header("Content-Length", str(code.frames_bytes(sizes[digest] for digest in digests)))
        handler.end_headers()
        for digest in digests:
            with self._store.open(digest) as source:
                handler.wfile.write(code.head(digest, sizes[digest]))
                shutil.copyfileobj(source, handler.wfile, code.CHUNK)


def _read(handler: Handler, length: int) -> bytes:
    body: bytes = handler.rfile.read(length)
    if len(body) < length:
        raise code.Torn("the request ended early")
    return body


def _say(handler: Handler, status: HTTPStatus, sentence: str) -> None:
    handler.close_connection = True
    handler._say(status, sentence)
