"""The listener at which nodes ask a supervisor for their certificates: TLS without a client's certificate, one path."""

from __future__ import annotations

import errno
import logging
import ssl
from http import HTTPStatus

from prometheus_client import CollectorRegistry

from supervisor.ports.errors import Fatal, PortError
from supervisor.shell.enroll.signer import Early, Refused, Signer
from supervisor.shell.metrics.listener import Handler, Listener
from supervisor.wire.enrollment import BYTES_AT_MOST, PATH
from supervisor.wire.listener_files import ListenerFiles, server_context
from supervisor.wire.security import Security, SecurityError, host_and_port

log = logging.getLogger(__name__)

REFUSED = "this gets no certificate; the supervisor's log has the reason"
"""Answer to every refused request: a stranger learns nothing by asking."""


class EnrollListener(Listener):
    """Answers requests for certificates."""

    def __init__(self, address: str, port: int, signer: Signer, security: Security) -> None:
        """Raises OSError if the address is not this machine's, or is taken."""
        self.signer = signer
        super().__init__(address, port, CollectorRegistry(), security, _Handler)

    def tls(self, files: ListenerFiles) -> ssl.SSLContext:
        return server_context(files, anyone=True)


def serve(signer: Signer, security: Security) -> EnrollListener | None:
    """Serves in a thread, at the first address of `enroll` that this machine has and that is free. None if it has none
    of them. Raises Fatal if those that it has are taken."""
    taken = ""
    for endpoint in security.enroll:
        host, port = host_and_port(endpoint)
        try:
            listener = EnrollListener(host, port, signer, security)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                taken = f"{endpoint}: {error.strerror}"
            continue
        listener.serve()
        log.info("nodes get certificates at %s", endpoint)
        return listener
    if taken:
        raise Fatal(f"cannot listen for nodes that ask for certificates at {taken}; enroll in {security.path} names it")
    log.warning(
        "this supervisor gives nodes no certificates: no address of enroll in %s is this machine's", security.path
    )
    return None


class _Handler(Handler):
    server: EnrollListener

    def do_GET(self) -> None:
        self._say(HTTPStatus.NOT_FOUND, f"there is POST {PATH}")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        try:
            self._enroll()
        except (BrokenPipeError, ConnectionResetError, TimeoutError, ssl.SSLError) as error:
            log.debug("%s went away: %s", self.client_address, error)

    def _enroll(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != PATH or not length.isdecimal() or len(length) > 9 or int(length) > BYTES_AT_MOST:
            self.do_GET()
            return
        body = self.rfile.read(int(length))
        self.server.heard(self.connection)
        peer = str(self.client_address[0])
        try:
            answer = self.server.signer.answer(body, peer)
        except Refused as why:
            level = logging.INFO if isinstance(why, Early) else logging.WARNING
            log.log(level, "a request for a certificate from %s is refused: %s", peer, why)
            self._say(HTTPStatus.FORBIDDEN, REFUSED)
        except PortError as error:
            log.warning("a request for a certificate from %s gets no answer: %s", peer, error)
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "etcd is away: ask again")
        except (OSError, SecurityError) as error:
            log.error("no certificate can be signed: %s", error)
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "no certificate can be signed now: ask again")
        else:
            self._send(HTTPStatus.OK, answer, "application/json")
