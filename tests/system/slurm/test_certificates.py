"""`submit` with certificates: nodes get theirs by request, and no key is on a shared folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.own_slurm import Slurm, available, slurm
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import connect
from supervisor.shell.etcd.auth import init_auth
from supervisor.shell.inspect import client, status
from supervisor.wire import keys
from supervisor.wire.address import free_ports
from supervisor.wire.enrollment import secret
from tests.helpers.tls import Certificates, TlsEtcd, tls_etcd

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available() or not shutil.which("openssl")), reason=available() or "no openssl"),
    pytest.mark.timeout(900),
]

SOON_S = 90.0
SUBMIT_S = 360.0
"""Time to import torch, check the run file, and wait for a job and a leader, beside other tests on 2 cores."""
HOSTS = ("n1", "n2", "n3")

RUN = f"""
name = "toy"
[titan]
steps = 1000000
[groups]
GROUPS
[allocation]
engine = "slurm"
nodes = 2
spares = 0
[allocation.slurm]
partition = "train"
shape = "SHAPE"
node_folder = "FOLDER"
drain_suspects = false
[policy]
node_lease_s = {LEASE_S}
term_grace_s = 1.0
"""


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Slurm, TlsEtcd, Certificates]]:
    """Yields a Slurm, and an etcd that knows its hosts."""
    certificates = Certificates(folder / "shared")
    nodes = [*HOSTS, *(f"service-{host}" for host in HOSTS)]
    certificates.make("etcd", "root", "supervisor", *(f"node-service-{host}" for host in HOSTS))
    with tls_etcd(folder / "etcd", certificates) as server, slurm(folder, len(HOSTS)) as lab:
        list(init_auth([server.endpoint], certificates.of("root"), nodes))
        try:
            yield lab, server, certificates
        finally:
            lab.command("scancel", "--user=root")
            eventually(lambda: not _live(lab), SOON_S, "all jobs have ended")


def _live(lab: Slurm) -> list[str]:
    live = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING")
    return [str(job["name"]) for job in lab.jobs() if job["job_state"] in live]


def signing(certificates: Certificates, own: Path, host: str = "127.0.0.1") -> Path:
    """Copies the files of a control-plane host to a folder of its own, and returns the supervisor's security file. Nodes
    get their certificates at `host`."""
    own.mkdir(mode=0o700)
    names = ("ca.pem", "ca.key", "crl.pem", "supervisor.*", "node-service-*")
    for file in [file for name in names for file in certificates.folder.glob(name)]:
        shutil.copy2(file, own)
    file = own / "supervisor.toml"
    (port,) = free_ports(1)
    accepts = "" if "insecure" in file.read_text() else "insecure = true\n"
    with file.open("a") as out:
        out.write(f'{accepts}signs = "ca.key"\nenroll = ["{host}:{port}"]\n')
    return file


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ("job_per_node", "count = 2"),
        pytest.param("job_per_group", "count = 1\nnodes_per_group = 2\nranks_per_group = 2", marks=pytest.mark.long),
    ],
)
def test_nodes_enroll_and_no_key_is_on_a_shared_folder(tmp_path: Path, shape: str, groups: str) -> None:
    count = int(groups.split()[2])
    with cluster(tmp_path) as (lab, server, certificates):
        run = tmp_path / "run.toml"
        run.write_text(
            RUN.replace("FOLDER", str(lab.folder / "local")).replace("SHAPE", shape).replace("GROUPS", groups)
        )
        programs = {"SUPERVISOR_PROGRAMS": json.dumps(TOYS), "PYTHONPATH": str(Path(__file__).parents[3])}

        def submit(security: Path, code: int) -> str:
            command = [sys.executable, "-m", "supervisor.cli", "submit", str(run), "--supervisors", "1"]
            result = subprocess.run(
                [*command, "--etcd", server.endpoint, "--home", str(tmp_path / "runs"), "--security", str(security)],
                capture_output=True, text=True, check=False, timeout=SUBMIT_S,
                env={**os.environ, **lab.environment, **programs},
            )  # fmt: skip
            assert result.returncode == code, result.stdout + result.stderr
            assert "Traceback" not in result.stderr
            return result.stdout + result.stderr

        beside = certificates.file("supervisor")
        beside.write_text(beside.read_text().replace("insecure = true\n", ""))
        said = submit(beside, code=2)
        assert "supervisor.key lies in" in said
        assert 'move the supervisor\'s files to a folder on its own hosts alone, and name the nodes\' folder by `nodes = "FOLDER"`' in said  # fmt: skip
        assert _live(lab) == []

        own, secrets = tmp_path / "own", [b"SUPERVISOR_ENROLL"]
        submit(signing(certificates, own), code=0)
        secrets += [secret((own / "ca.key").read_bytes(), f"toy-a{n}").encode() for n in (1, 2, 3)]
        with connect([server.endpoint], security=certificates.of("root")) as store:

            def trains() -> bool:
                mirror = Mirror(store.list(keys.PREFIX))
                groups = status.run_status(mirror, client.choose_run(mirror, "toy")).groups
                return len(groups) == count and all(group.phase == "running" and group.step > 3 for group in groups)

            eventually(trains, SOON_S, "both groups train")
        ours = [
            words for words in _commands() if b"agents.shim\0--node=n" in words and str(lab.folder).encode() in words
        ]
        assert len(ours) == 2
        for words in ours:
            assert b"/certificates/node.toml" in words
            assert str(own).encode() not in words
        of_nodes = [words for words in _commands() if f"SUPERVISOR_NODE_DIR={lab.folder}".encode() in words]
        assert len(of_nodes) >= 6, "agents, warm processes, trainers"
        assert not [words for words in (*ours, *of_nodes) if any(secret in words for secret in secrets)]
        with_key = [file for file in _files(tmp_path) if b"PRIVATE KEY" in file.read_bytes()]
        local = lab.folder / "local" / "nodes"
        assert {file.parent for file in with_key} == {own, certificates.folder}, (
            "the authority's folder, and the supervisor's"
        )
        assert not [file for file in with_key if file.name.startswith("node-n")]
        assert len(list(local.glob("n*/certificates/node.pem"))) == 2
        shown = [lab.command("scontrol", "show", "job", str(job["job_id"]), "-dd").stdout for job in lab.jobs()]
        ends = (".log", ".json", ".jsonl")
        logs = [file.read_text(errors="replace") for file in _files(tmp_path / "runs") if file.suffix in ends]
        logs += [file.read_text(errors="replace") for file in _files(local) if file.suffix == ".log"]
        assert sum(log.count("gets a certificate until") for log in logs) == 2
        with connect([server.endpoint], security=certificates.of("root")) as store:
            records = [item.value.decode() for item in store.list(keys.PREFIX).items]
        assert not [text for text in (*shown, *logs, *records) if any(word.decode() in text for word in secrets)]


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _commands() -> Iterator[bytes]:
    """The command lines and environments of all processes."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "cmdline").read_bytes() + b"\0" + (process / "environ").read_bytes()
        except OSError:
            continue
