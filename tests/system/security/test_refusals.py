"""The errors for a wrong or missing security file at the command line, and the warning of an insecure one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.shell.etcd import connect
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, Registration
from supervisor.wire.security import load
from tests.helpers.etcd import running
from tests.helpers.tls import Certificates, TlsEtcd

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(540)]

AGENT = ("-m", "agents.cli", "run", "--home", "home", "--cold")
SUPERVISOR = ("-m", "supervisor.cli")


def said(folder: Path, *arguments: str, code: int = 2) -> str:
    """The output of a command that must end with `code` and sentences."""
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=240, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout + result.stderr


OFF_LOOPBACK: dict[str, Sequence[str]] = {
    "run": (*SUPERVISOR, "run", "--etcd", "10.9.9.9:2379"),
    "run's metrics": (*SUPERVISOR, "run", "--etcd", "127.0.0.1:1", "--metrics-address", "0.0.0.0"),
    "up": (*SUPERVISOR, "up", "--etcd", "10.9.9.9:2379"),
    "status": (*SUPERVISOR, "status", "--etcd", "10.9.9.9:2379"),
    "nodes": (*SUPERVISOR, "nodes", "--etcd", "etcd-0:2379"),
    "stop": (*SUPERVISOR, "stop", "--etcd", "10.9.9.9:2379"),
    "pause": (*SUPERVISOR, "pause", "--etcd", "127.0.0.1:2379,10.9.9.9:2379"),
    "agent": (*AGENT, "--node", "n1", "--etcd", "10.9.9.9:2379"),
    "agent's address": (*AGENT, "--node", "n1", "--etcd", "127.0.0.1:1", "--address", "10.9.9.9"),
}


@pytest.mark.parametrize("command", OFF_LOOPBACK)
def test_off_loopback_without_tls_is_refused(tmp_path: Path, command: str) -> None:
    text = said(tmp_path, *OFF_LOOPBACK[command])
    assert "off loopback and would be unencrypted: give --security FILE" in text
    assert "insecure = true" in text


@pytest.mark.parametrize(
    "command", [(*SUPERVISOR, "run", "--etcd", "127.0.0.1:1"), (*SUPERVISOR, "status"), (*SUPERVISOR, "up"), (*AGENT, "--node", "n1", "--etcd", "127.0.0.1:1")]
)  # fmt: skip
def test_a_typo_in_the_file_stops_the_start(tmp_path: Path, command: Sequence[str]) -> None:
    (tmp_path / "bad.toml").write_text("insecur = true\n")
    assert "there is no 'insecur'; nearest: insecure" in said(tmp_path, *command, "--security", "bad.toml")


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    ours, foreign = Certificates(tmp_path / "ours"), Certificates(tmp_path / "foreign")
    ours.make("supervisor", "reader")
    foreign.make("supervisor")
    command = (*SUPERVISOR, "status", "--etcd", "https://127.0.0.1:1", "--security")
    for text, words in (
        (f'ca = "{foreign.folder}/ca.pem"\ncert = "supervisor.pem"\nkey = "supervisor.key"\n', "is not a certificate that"),
        ('ca = "ca.pem"\ncert = "supervisor.pem"\nkey = "reader.key"\n', "belong together"),
        ('ca = "ca.pem"\ncert = "supervisor.pem"\nkey = "locked.key"\n', "the key must have no password"),
    ):  # fmt: skip
        subprocess.run(
            ["openssl", "pkey", "-in", ours.folder / "supervisor.key", "-aes256", "-passout", "pass:word",
             "-out", ours.folder / "locked.key"], check=True,
        )  # fmt: skip
        (ours.folder / "bad.toml").write_text(text)
        assert words in said(tmp_path, *command, str(ours.folder / "bad.toml"))


def test_a_node_with_the_certificate_of_another(tmp_path: Path, authed: TlsEtcd) -> None:
    command = (
        *AGENT,
        "--node",
        "n1",
        "--etcd",
        authed.endpoint,
        "--security",
        str(authed.certificates.file("node-n2")),
    )
    assert "is the certificate of 'node-n2': node n1 needs that of 'node-n1'" in said(tmp_path, *command)
    long = (
        *AGENT,
        "--node",
        "n" * 60,
        "--etcd",
        authed.endpoint,
        "--security",
        str(authed.certificates.file("node-n2")),
    )
    assert "a name has 59 characters at most" in said(tmp_path, *long)


def test_what_a_reader_may_see_and_may_not_do(tmp_path: Path, authed: TlsEtcd) -> None:
    reader = ("--etcd", authed.endpoint, "--security", str(authed.certificates.file("reader")))
    assert "node" in said(tmp_path, *SUPERVISOR, "nodes", *reader, code=0)
    with connect([authed.endpoint], security=authed.certificates.of("supervisor")) as store:
        store.put(keys.LEADER, b"{}")
    (tmp_path / "run.toml").write_text('name = "r"\n')
    text = said(tmp_path, *SUPERVISOR, "launch", "run.toml", *reader, code=1)
    assert "etcd does not allow this to the user 'reader'" in text


def test_a_key_that_others_may_use_is_refused(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    made.make("supervisor")
    for mode in (0o640, 0o604):
        (tmp_path / "supervisor.key").chmod(mode)
        text = said(tmp_path, *SUPERVISOR, "status", "--etcd", "https://127.0.0.1:1", "--security", "supervisor.toml")
        assert f"others than its owner may use the key {tmp_path}/supervisor.key: run `chmod 600" in text


def test_up_wants_a_certificate_for_each_node(tmp_path: Path, authed: TlsEtcd) -> None:
    file = tmp_path / "alone" / "supervisor.toml"
    file.parent.mkdir()
    folder = authed.certificates.folder
    file.write_text(f'ca = "{folder}/ca.pem"\ncert = "{folder}/supervisor.pem"\nkey = "{folder}/supervisor.key"\n')
    text = said(tmp_path, *SUPERVISOR, "up", "--nodes", "1", "--etcd", authed.endpoint, "--security", str(file))
    assert "node host needs a certificate of its own" in text


def test_insecure_is_allowed_and_stays_in_the_status(tmp_path: Path) -> None:
    file = tmp_path / "insecure.toml"
    file.write_text("insecure = true\n")
    with running(tmp_path / "etcd") as server:
        world = World(tmp_path, server, 2, {"SUPERVISOR_PROGRAMS": json.dumps(TOYS)}, security=load(file))
        try:
            world.supervisor()
            record = world.launch(toy_spec(spares=0))
            eventually(world.running(record, 1, 1), 60, "both groups run")
            mirror = world.mirror()
            leader = mirror.record(keys.LEADER, LeaderRecord)
            node = mirror.record(keys.registration("n1"), Registration)
            assert leader is not None
            assert leader.insecure
            assert node is not None
            assert node.insecure
            at = ("--etcd", server.endpoint)
            text = said(tmp_path, *SUPERVISOR, "status", *at, code=0)
            assert "warning: insecure = true (the leader, node host, node n1, node n2)" in text
            # a warning about the etcd may follow on stderr
            found, _ = json.JSONDecoder().raw_decode(said(tmp_path, *SUPERVISOR, "status", "--json", *at, code=0))
            assert len(found["warnings"]) == 1
            assert found["problems"] == []
        finally:
            world.close()


def test_insecure_lets_a_node_listen_off_loopback(tmp_path: Path) -> None:
    """The address belongs to no machine here: the command passes the refusal, and the next step stops it."""
    (tmp_path / "insecure.toml").write_text("insecure = true\n")
    command = (*AGENT, "--node", "n1", "--etcd", "127.0.0.1:1", "--address", "192.0.2.1", "--security", "insecure.toml")
    assert "cannot listen on 192.0.2.1:0" in said(tmp_path, *command, code=1)
