"""The recipes of docs/ENVIRONMENT.md for containers: a job's real script, with runtimes that execute what follows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.shim import process
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.nodes import RUN, Node, desire, rank, registration, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import AllocationSpec, EnvSpec, SlurmSpec
from supervisor.ports.engine import Request
from supervisor.ports.store import Store
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.engines.slurm.script import script
from supervisor.shell.runfile import parse
from supervisor.wire import environment
from supervisor.wire.security import Security

DOCS = Path(__file__).parents[3] / "docs"
TABLES = [
    tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", (DOCS / "ENVIRONMENT.md").read_text(), re.S)
]
RECIPES = {
    table["allocation"]["slurm"]["agent_command"].split()[0]: table["allocation"]["slurm"]
    for table in TABLES
    if "agent_command" in table.get("allocation", {}).get("slurm", {})
}
RUNTIME = f"""#!{sys.executable}
import json, os, sys
at = sys.argv.index("supervisor-agent") if "supervisor-agent" in sys.argv else len(sys.argv)
with open(os.environ["COMMAND_LINES"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:at]]) + "\\n")
if sys.argv[at:]:
    os.execvp(sys.argv[at], sys.argv[at:])
"""


def test_every_table_of_the_page_is_a_run_file() -> None:
    assert len(TABLES) > 4
    for table in TABLES:
        table.get("allocation", {}).setdefault("engine", "slurm")
        parse.parse({"name": "run", **table})


@pytest.fixture
def node(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_server: EtcdServer, store: Store
) -> Iterator[tuple[Node, Path]]:
    """A node that the script of a Slurm job starts in a container."""
    recipe = RECIPES[request.param]
    slurm = SlurmSpec(**{**recipe, "node_folder": str(tmp_path)})
    wanted = Request(key="toy-a1", run=RUN, slots=1, lease_s=2, spec=AllocationSpec(engine="slurm", slurm=slurm))
    for program in ("srun", "apptainer", "module"):
        (tmp_path / "bin" / program).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / program).write_text(RUNTIME)
        (tmp_path / "bin" / program).chmod(0o755)
    of_job = {
        "PATH": f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COMMAND_LINES": str(tmp_path / "lines"),
        "SLURMD_NODENAME": "n0",
        "SLURM_CPUS_ON_NODE": "7",
        "SUPERVISOR_PROGRAMS": json.dumps(TOYS),
    }
    text = script(wanted, [etcd_server.endpoint], Security(), "lab")
    job = subprocess.Popen(["/bin/bash", "-c", text], env={**os.environ, **of_job})
    made = Node.__new__(Node)
    made.name, made.folder, made.shim = "n0", tmp_path / "nodes" / "n0", job
    try:
        yield made, tmp_path / "lines"
    finally:
        made.end()


@pytest.mark.parametrize("node", RECIPES, indirect=True)
def test_a_node_in_a_container(node: tuple[Node, Path], store: Store) -> None:
    made, lines = node
    desire(store, "n0", trainer(env=EnvSpec(set={"MINE": "yes"})))
    pid = running(store, made, 1, deadline_s=30)
    assert environment.of_process(pid)["MINE"] == "yes"
    of = registration(store, "n0")
    assert of is not None
    assert (of.host, of.allocation) == ("n0", "toy-a1")
    asked = [json.loads(line) for line in lines.read_text().splitlines()]
    said = " ".join(asked[-1])
    assert "everstep.s" in said, "the image"
    assert "/tmp" in said, "what is mounted"
    assert "/shared" in said
    if asked[-1][0] == "srun":
        assert {"--ntasks=1", "--cpus-per-task=7", "--mem=0"} <= set(asked[-1])
    else:
        assert asked[0] == ["module", "load", "apptainer"]
    # the job's process is the shim: it ends all by TERM, and itself
    made.shim.terminate()
    assert made.shim.wait(timeout=20) == 0
    assert made.left() == []
    end = rank(store, "n0", 1)
    assert end is not None
    assert end.state == "exited"
    assert process.stat_of(pid) is None
    eventually(lambda: registration(store, "n0") is None, 10)
