"""A node's certificate by request: makes a key on this machine, asks a supervisor, and asks again before it expires."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from supervisor.core.report.visible import visible
from supervisor.wire.enrollment import PATH, Given
from supervisor.wire.security import (
    SUPERVISOR,
    SecurityError,
    common_name,
    host_and_port,
    load,
    node_name,
    read_certificate,
)

log = logging.getLogger(__name__)

WITHIN_S = 600.0
"""Seconds for which a node that starts asks: a control plane that comes back takes minutes, and the job has waited in
Slurm's queue. A leader takes the job back sooner if its node does not register."""

FIRST_PAUSE_S, PAUSE_MAX_S = 1.0, 10.0
"""Seconds between two rounds of the addresses: doubles from the first to the second."""

ANSWERS_WITHIN_S = 10.0
"""Seconds for an address to connect, and to answer."""

LOOK_S = 60.0
"""Most seconds between two looks at the clock: a machine may sleep."""

SHARE_LEFT = 1 / 3
"""The part of a certificate's life at whose beginning its node asks for the next one."""

TRIES_PER_LIFE = 200
"""A renewal that fails is repeated so often within a life: every 7 minutes of a day."""

_ASKED = "enroll.json"
"""File beside the certificate: where to ask, and with which secret."""


class EnrollError(Exception):
    """No certificate was given; the text says by whom, and why."""


def enroll(node: str, allocation: str, folder: Path, given: Given, within_s: float = WITHIN_S) -> Path:
    """Gets the node's first certificate, and returns its security file in `folder`. Raises EnrollError, OSError."""
    if allocation not in given.secrets:
        raise EnrollError(f"this job was given no secret of allocation {allocation!r}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    asked = {"node": node, "allocation": allocation, "secret": given.secrets[allocation], "addresses": given.addresses}
    _replace(folder / _ASKED, json.dumps(asked))
    _replace(folder / "ca.pem", given.ca)
    (folder / "crl.pem").unlink(missing_ok=True)  # an earlier job's, perhaps of another authority
    until, pause_s = time.monotonic() + within_s, FIRST_PAUSE_S
    while True:
        try:
            return renew(folder)
        except EnrollError as error:
            if time.monotonic() + pause_s > until:
                raise EnrollError(f"{error}; asked for {within_s:g} s") from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def renew(folder: Path) -> Path:
    """Asks each address once until one gives a certificate, for a new key. Returns the security file. Raises
    EnrollError; OSError for files here."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    asked = json.loads((folder / _ASKED).read_text())
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node_name(asked["node"]))])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = request.public_bytes(serialization.Encoding.PEM).decode()
    body = json.dumps({name: asked[name] for name in ("node", "allocation", "secret")} | {"request": pem}).encode()
    context, why = _context(folder), []
    for address in asked["addresses"]:
        try:
            answer = json.loads(_ask(address, context, body))
            certificate, ca, crl = (str(answer[name]) for name in ("certificate", "ca", "crl"))
            if x509.load_pem_x509_certificate(certificate.encode()).public_key() != key.public_key():
                raise ValueError("the certificate is for another key")
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            why.append(f"{address}: {visible(str(error))}")
            continue
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        return _write(folder, private + certificate, ca, crl)
    raise EnrollError(f"no certificate of node {asked['node']}: {'; '.join(why)}")


def _ask(address: str, context: ssl.SSLContext, body: bytes) -> bytes:
    host, port = host_and_port(address)
    connection = http.client.HTTPSConnection(host.strip("[]"), port, context=context, timeout=ANSWERS_WITHIN_S)
    with contextlib.closing(connection):
        connection.connect()
        name = common_name(connection.sock)
        if name != SUPERVISOR:
            raise ValueError(f"it shows the certificate of {name!r}, not of {SUPERVISOR!r}")
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise ValueError(said.decode(errors="replace").strip()[:200])
        return said


def _context(folder: Path) -> ssl.SSLContext:
    """Returns the context of a client without a certificate that trusts the folder's authorities and deny list."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the common name is compared
    context.load_verify_locations(cafile=str(folder / "ca.pem"))
    if (folder / "crl.pem").exists():
        context.load_verify_locations(cafile=str(folder / "crl.pem"))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _write(folder: Path, own: str, ca: str, crl: str) -> Path:
    """Puts the files there, each whole. Key and certificate are one file: no process reads half of a pair."""
    lines = ['ca = "ca.pem"', 'cert = "node.pem"', 'key = "node.pem"']
    _replace(folder / "ca.pem", ca)
    if crl:
        _replace(folder / "crl.pem", crl)
        lines.append('crl = "crl.pem"')
    _replace(folder / "node.pem", own)
    _replace(folder / "node.toml", "\n".join([*lines, ""]))
    return folder / "node.toml"


def _replace(file: Path, text: str) -> None:
    new = file.with_name(f"{file.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    new.rename(file)


class Renewal:
    """Renews the certificate of an enrolled node, in a thread. It does nothing for any other node. What fails is logged
    and tried again."""

    def __init__(self, security_file: str, now: Callable[[], float] = time.time) -> None:
        self._file = Path(security_file)
        self._now = now
        self._stop = threading.Event()
        self._again_unix_s = 0.0
        self._trouble = ""

    def start(self) -> None:
        if self._file.name == "node.toml" and (self._file.parent / _ASKED).exists():
            threading.Thread(target=self._run, name="renewal", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                pause_s = self.look()
            except (OSError, SecurityError, EnrollError, ValueError) as error:
                if str(error) != self._trouble:
                    log.warning("the certificate is not renewed yet: %s", error)
                self._trouble, pause_s = str(error), max(1.0, min(LOOK_S, self._again_unix_s - self._now()))

    def look(self) -> float:
        """Renews the certificate if that is due. Returns the seconds until the next look. Raises OSError,
        SecurityError, EnrollError."""
        security = load(self._file)
        since, until = Path(security.cert).stat().st_mtime, read_certificate(security).not_after_unix_s
        due = max(until - (until - since) * SHARE_LEFT, self._again_unix_s)
        if self._now() >= due:
            self._again_unix_s = self._now() + max(FIRST_PAUSE_S, (until - since) / TRIES_PER_LIFE)
            renew(self._file.parent)
            self._trouble = ""
            log.info("the certificate %s is renewed", security.cert)
            return 0.0
        return max(0.0, min(LOOK_S, due - self._now()))
