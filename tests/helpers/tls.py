"""Certificates, and a real etcd that requires them."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fault_injection.testbed.netns import SUBNET
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Retryable
from supervisor.shell.dev.etcd_server import find_server
from supervisor.shell.etcd import connect
from supervisor.wire.address import free_ports
from supervisor.wire.security import Security, load

SCRIPT = Path(__file__).parents[2] / "deploy" / "certificates.sh"
FAR = f"{SUBNET}.254"
"""A second address of what has a certificate: where machines of a test's own network reach this one."""


@dataclass(frozen=True)
class Certificates:
    """A folder as deploy/certificates.sh makes it. `accepts_holes`: its security files accept an etcd with known holes,
    as that of Debian is."""

    folder: Path
    accepts_holes: bool = True

    def make(self, *names: str, seconds: float | None = None) -> None:
        """A certificate for each name; one that is there is renewed. `seconds`: for how long it holds."""
        environment = {**os.environ, "SANS": f"IP:127.0.0.1,IP:{FAR},DNS:localhost"}
        if seconds is not None:
            until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
            environment["NOT_AFTER"] = until.strftime("%Y%m%d%H%M%SZ")
        subprocess.run(["sh", str(SCRIPT), str(self.folder), *names], check=True, env=environment)
        for name in names if self.accepts_holes else ():
            if "insecure" not in self.file(name).read_text():
                with self.file(name).open("a") as file:
                    file.write("insecure = true\n")

    def revoke(self, *names: str) -> None:
        """Puts their certificates so far on the deny list."""
        subprocess.run(["sh", str(SCRIPT), str(self.folder), "--revoke", *names], check=True)

    def list_again(self, seconds: float, begins_in_s: float = -3600.0) -> None:
        """Makes an empty deny list that lapses so soon."""
        config = self.folder / "list.config"
        config.write_text(
            f"[ca]\ndefault_ca = own\n[own]\ndatabase = {self.folder}/list.index\ndefault_md = sha256\n"
            "crl_extensions = list\n[list]\nauthorityKeyIdentifier = keyid\n"
        )
        (self.folder / "list.index").touch()
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
        command = ["openssl", "ca", "-config", config, "-gencrl", "-out", self.folder / "crl.new"]
        command += ["-cert", self.folder / "ca.pem", "-keyfile", self.folder / "ca.key"]
        begins = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=begins_in_s)
        times = [
            "-crl_lastupdate",
            begins.strftime("%Y%m%d%H%M%SZ"),
            "-crl_nextupdate",
            until.strftime("%Y%m%d%H%M%SZ"),
        ]
        subprocess.run([*command, *times], check=True, capture_output=True)
        (self.folder / "crl.new").rename(self.folder / "crl.pem")

    def file(self, name: str) -> Path:
        """The security file of a name."""
        return self.folder / f"{name}.toml"

    def of(self, name: str) -> Security:
        return load(self.file(name))

    def keys(self) -> list[str]:
        """Every line of every private key that could be a secret."""
        lines = [line for path in self.folder.glob("*.key") for line in path.read_text().splitlines()]
        return [line for line in lines if not line.startswith("-----")]


class TlsEtcd:
    """One member that takes only clients with a certificate of `certificates`' authority."""

    def __init__(self, folder: Path, certificates: Certificates, host: str = "127.0.0.1") -> None:
        """`host`: the address at which it listens, which is in its certificate: loopback, or FAR."""
        self.folder = folder
        self.certificates = certificates
        folder.mkdir(parents=True, exist_ok=True)
        client, peer = free_ports(2)
        self.endpoint = f"https://{host}:{client}"
        self.plain = f"{host}:{client}"
        peer_url = f"http://127.0.0.1:{peer}"
        flags = {
            "name": "m0",
            "data-dir": folder / "data",
            "listen-client-urls": self.endpoint,
            "advertise-client-urls": self.endpoint,
            "listen-peer-urls": peer_url,
            "initial-advertise-peer-urls": peer_url,
            "initial-cluster": f"m0={peer_url}",
            "cert-file": certificates.folder / "etcd.pem",
            "key-file": certificates.folder / "etcd.key",
            "trusted-ca-file": certificates.folder / "ca.pem",
            "client-cert-auth": "true",
            "client-crl-file": certificates.folder / "crl.der",
            "logger": "zap",
            "log-level": "warn",
        }
        self._argv = [str(find_server()), *(f"--{name}={value}" for name, value in flags.items())]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "etcd.log").open("ab") as log:
            return subprocess.Popen(self._argv, stdout=log, stderr=log, start_new_session=True)

    def restart(self) -> None:
        """Sends SIGKILL and starts again, on the same port and data: every client must reconnect."""
        self.stop()
        self.process = self._start()
        eventually(lambda: _answers(self), 20, "the etcd with TLS answers again")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def tls_etcd(folder: Path, certificates: Certificates, host: str = "127.0.0.1") -> Iterator[TlsEtcd]:
    """Yields a server that answers, for one test; needs the certificates `etcd` and `root`. Ended with the block.
    `host`: as TlsEtcd."""
    server = TlsEtcd(folder, certificates, host)
    try:
        eventually(lambda: _answers(server), 20, "the etcd with TLS answers")
        yield server
    finally:
        server.stop()


def _answers(server: TlsEtcd) -> bool:
    try:
        with connect([server.endpoint], 1.0, server.certificates.of("root")) as store:
            return store.status().has_leader
    except Retryable:
        return False
