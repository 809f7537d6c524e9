"""Tries what another user of the same machine can do to a `supervisor up` without certificates."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.shell.etcd import connect
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, decode
from tests.helpers.ordinary_user import as_user
from tests.unit.shell.engines.slurm.test_node_folder import said, started

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.timeout(540),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
]

WRITE = f"""
import sys
from supervisor.ports.errors import PortError
from supervisor.shell.etcd import connect
try:
    with connect(sys.argv[1:], timeout_s=2.0) as store:
        store.put("{keys.desired("n1", "forged")}", b"code")
except PortError as error:
    sys.exit(f"refused: {{error}}")
"""


EMPTY = '{"files":[],"links":[]}'

CODE = f"""
import sys, urllib.error, urllib.request
for path, body in (("missing", '{EMPTY}'), ("put", "x"), ("get", "{"0" * 64}")):
    try:
        print(urllib.request.urlopen(sys.argv[1] + "code/" + path, body.encode(), timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""

READ = """
import sys, urllib.error, urllib.request
for path in sys.argv[2:]:
    try:
        print(urllib.request.urlopen(sys.argv[1] + path.removeprefix("./"), timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The folder of an `up` that runs, below folders that all users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ev", dir="/tmp"))
    folder.chmod(0o755)
    output = folder / "up.out"
    command = [sys.executable, "-m", "supervisor.cli", "up", "--nodes", "1", "--cold", "--home", str(folder / "runs")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPERVISOR_")}
    with output.open("wb") as file:
        up = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        eventually(lambda: b"Now: supervisor launch" in output.read_bytes() or up.poll() is not None, 60, "up is up")
        assert up.poll() is None, output.read_text()
        yield folder / "runs"
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) in (0, 1), output.read_text()
        shutil.rmtree(folder)


def endpoint(home: Path) -> str:
    return str(json.loads((home / ".supervisor" / "up.json").read_text())["etcd"])


def test_another_user_writes_nothing_into_etcd(home: Path) -> None:
    """A user that may write `desired/NODE` runs programs as the user of that node."""
    tried = subprocess.run(
        as_user(sys.executable, "-c", WRITE, endpoint(home)), capture_output=True, text=True, check=False, timeout=60
    )
    with connect([endpoint(home)]) as store:
        assert store.get(keys.desired("n1", "forged")) is None
    assert "refused: no etcd answers" in tried.stderr, tried.stderr


def test_another_user_reads_and_writes_no_code(home: Path) -> None:
    with connect([endpoint(home)]) as store:
        item = store.get(keys.LEADER)
        assert item is not None
        page = decode(item.value, LeaderRecord).page
    tried = subprocess.run(
        as_user(sys.executable, "-c", CODE, page), capture_output=True, text=True, check=False, timeout=60
    )
    assert tried.stdout.split() == ["403", "403", "403"], tried.stderr
    with urllib.request.urlopen(urllib.request.Request(page + "code/missing", EMPTY.encode())) as answer:
        assert answer.status == 200, "the one who started it may"


def test_another_user_reads_no_page(home: Path) -> None:
    """It has all run files, the state of each group and the ends of logs. /metrics and /targets have numbers and names."""
    with connect([endpoint(home)]) as store:
        item = store.get(keys.LEADER)
        assert item is not None
        page = decode(item.value, LeaderRecord).page
    paths = ["./", "snapshot.json", "events", "page.js", "metrics", "targets"]
    tried = subprocess.run(
        as_user(sys.executable, "-c", READ, page, *paths), capture_output=True, text=True, check=False, timeout=60
    )
    assert tried.stdout.split() == ["403", "403", "403", "403", "200", "200"], tried.stderr
    with urllib.request.urlopen(page + "snapshot.json") as answer:
        assert answer.status == 200, "the one who started it may"


def test_etcd_listens_at_no_address(home: Path) -> None:
    """Nor for peers: a member that is forged there would write as it likes."""
    pid = json.loads((home / ".supervisor" / "etcd" / "server.json").read_text())["pid"]
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    for table in ("tcp", "tcp6"):
        lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        assert not {f"socket:[{line.split()[9]}]" for line in lines} & sockets


def test_what_the_system_writes_is_for_its_user_alone(home: Path) -> None:
    written = [path for path in home.rglob("*") if not path.is_symlink()]
    assert any(path.name == "shim.sock" for path in written)
    assert [str(path) for path in written if path.stat().st_mode & 0o077] == []


def test_a_folder_of_another_user_in_tmp_is_not_used_by_a_slurm_job() -> None:
    """Its owner would hold the node's socket and logs, or keep the node from starting."""
    tmp = Path(tempfile.mkdtemp(prefix="ev", dir="/tmp"))
    try:
        tmp.chmod(0o1777)
        trap = tmp / f"supervisor-{os.getuid()}"
        subprocess.run(as_user("mkdir", "-p", str(trap / "sys" / "nodes")), check=True)
        home = started(tmp)
        assert home.parent == tmp
        assert not home.is_relative_to(trap)
        assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (os.getuid(), 0o700)
        assert f"{trap} is not this user's alone" in said(home)
        assert [path.name for path in trap.rglob("*")] == ["sys", "nodes"]
    finally:
        shutil.rmtree(tmp)
