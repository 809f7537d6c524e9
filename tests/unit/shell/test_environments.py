"""Every start of a process of ours uses the environment that was decided."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import EnvSpec, RunSpec
from supervisor.ports.errors import Fatal
from supervisor.shell.dev import etcd_server, parts
from supervisor.shell.engines.local import Pool, PoolNode, environment
from supervisor.shell.inspect import client
from supervisor.wire import programs
from tests.helpers import site

TELLS = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"


@pytest.fixture(autouse=True)
def _shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**site.OUTER_JOB, **site.PROXY, "NCCL_DEBUG": "WARN", "ETCD_NAME": "other"}.items():
        monkeypatch.setenv(name, value)


def given(log: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(eventually(lambda: log.exists() and log.read_text(), 20))
    return found


def right(found: dict[str, str]) -> bool:
    kept = {name: found.get(name) for name in ("NCCL_DEBUG", *site.PROXY)}
    return not site.OUTER_JOB.keys() & found.keys() and kept == {"NCCL_DEBUG": "WARN", **site.PROXY}


def test_what_up_starts(tmp_path: Path) -> None:
    process = parts.spawned(["-c", TELLS], tmp_path / "log", "a mark")
    found = given(tmp_path / "log")
    eventually(lambda: not process.alive, 20)
    assert right(found)
    assert found[programs.PART] == "a mark"


def test_an_etcd(tmp_path: Path) -> None:
    with etcd_server._spawn([sys.executable, "-c", TELLS], tmp_path / "log", "10.0.0.7") as process:
        assert process.wait(20) == 0
    found = given(tmp_path / "log")
    assert right(found)
    assert "ETCD_NAME" not in found
    assert "10.0.0.7" in found["no_proxy"].split(",")


def test_a_local_node() -> None:
    node = PoolNode("n0", address="10.0.0.8")
    found = environment(Pool(nodes=(node,), etcd="h:1"), node, 1)
    assert right(found)
    assert "10.0.0.8" in found["no_proxy"].split(",")


def test_the_check_of_a_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tells = f'import json, os; open({str(tmp_path / "log")!r}, "w").write(json.dumps(dict(os.environ))); print({{}})'
    monkeypatch.setattr(programs, "command", lambda *_: [sys.executable, "-c", tells])
    problems, _ = client.check_titan(RunSpec(name="run"))
    assert problems, "it gives no answer"
    assert right(given(tmp_path / "log"))


def test_the_check_of_a_run_file_with_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tells = "import json, os; print(json.dumps({'problems': [], 'changes': [], 'missing': [os.environ['MINE'], os.getcwd()]}))"
    monkeypatch.setattr(programs, "command", lambda *_: [sys.executable, "-c", tells])
    env = EnvSpec(set={"MINE": "a variable"}, directory=str(tmp_path))
    with pytest.raises(client.NotChecked, match=f"no a variable and no {tmp_path}: install"):
        client.check_titan(RunSpec(name="run", env=env))


@pytest.mark.parametrize("torn", ["", "[]", "{}", '{"nodes": [{"name": "n1", "colour": 1}]}', '{"nodes": 3'])
def test_a_pool_that_cannot_be_read_is_named(tmp_path: Path, torn: str) -> None:
    Pool(nodes=(PoolNode(name="n1"),), etcd="127.0.0.1:1", report_s=1.0, cold=True).save(tmp_path)
    (path,) = tmp_path.rglob("pool.json")
    path.write_text(torn)
    with pytest.raises(Fatal, match=r"pool\.json is not a pool of nodes"):
        Pool.load(tmp_path)
