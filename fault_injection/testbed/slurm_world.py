"""Starts a whole system on a real Slurm: etcd, supervisors and a service host here, nodes as Slurm jobs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.shim import process
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.own_slurm import Slurm, slurm
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, equal_digests, toy_spec
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Rung
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec, RunSpec, SlurmSpec, TitanSpec
from supervisor.shell.dev.etcd_server import EtcdServer, start_etcd
from supervisor.shell.inspect import status
from supervisor.shell.processes import is_running
from supervisor.wire import keys
from supervisor.wire.records import Registration, RunRecord

BEGIN_S = 480.0
"""Real trainers import and build for a minute beside other tests on 2 cores."""
DIGESTS_EVERY = 5


class SlurmWorld(World):
    """A world whose local engine has an empty pool: every node is a Slurm job."""

    def __init__(self, folder: Path, lab: Slurm, etcd: EtcdServer, environment: dict[str, str], **about: Any) -> None:
        self.lab = lab
        self.launched: list[RunRecord] = []
        super().__init__(folder, etcd, 0, {**lab.environment, **environment}, **about)
        self.toys = "SUPERVISOR_PROGRAMS" in environment

    def spec(
        self, name: str, groups: int = 2, spares: int = 1, slurm: dict[str, Any] | None = None, **policy: Any
    ) -> RunSpec:
        """A spec of toys, or of real trainers of a small model that hash their replicas."""
        how = SlurmSpec(**{"node_folder": str(self.system), "drain_suspects": False, **(slurm or {})})
        allocation = AllocationSpec(engine="slurm", nodes=groups, spares=spares, slurm=how)
        # jobs, agents and leases on a busy machine: nothing here is about how short a lease may be
        policy = {"node_lease_s": 5, **policy}
        spec = replace(toy_spec(name, groups, spares, **policy), allocation=allocation, torchft=TORCHFT)
        if self.toys:
            return replace(spec, titan=TitanSpec(steps=10**6, overrides={"toy.mode": "quorum"}))
        titan = TitanSpec(
            recipe="llama3-debug-small",
            steps=100_000,
            checkpoint_interval_steps=20,
            digest_interval_steps=DIGESTS_EVERY,
        )
        return replace(spec, titan=titan)

    def launch(self, spec: RunSpec) -> RunRecord:
        record = super().launch(spec)
        self.launched.append(record)
        return record

    def agent_pid(self, node: str) -> int:
        """Returns the registered agent's pid; 0 while none is registered."""
        registration = self.mirror().record(keys.registration(node), Registration)
        return registration.agent_pid if registration is not None else 0

    def says(self, record: RunRecord, *words: str) -> str:
        """Returns the sentence of `supervisor status` that has all these words; empty if there is none."""
        return next((x for x in self.status(record).waiting if all(word in x for word in words)), "")

    def job_of(self, record: RunRecord, group: int) -> int:
        """Returns the number of the Slurm job on which the group runs."""
        grant = self.mirror().record(keys.grant(record.spec.name, self.allocation_of(record, group)), Grant)
        assert grant is not None
        return int(grant.engine_id.rpartition(":")[2])

    def live_jobs(self, *states: str) -> list[dict[str, Any]]:
        """Returns the jobs in these states; by default those that have not ended."""
        wanted = states or ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING")
        return [job for job in self.lab.jobs() if job["job_state"] in wanted]

    def lose_machine(self, node: str) -> None:
        """Kills the node's slurmd, the step's daemon and its shim, with all that hangs on them: none is left to report
        it."""
        shim = self.shim_pid(node)
        stat = process.stat_of(shim)
        assert stat is not None
        self.lab.kill_slurmd(node)
        for pid in (stat.parent, shim):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_running(shim, stat.start_ticks), 5, "the shim ends")

    def recovered(self, record: RunRecord, known: int) -> Incident | None:
        """Returns the newest incident, once there is one more than `known` and it is over."""
        incidents = self.incidents(record)
        over = len(incidents) > known and all(i.state == "recovered" for i in incidents)
        return incidents[-1] if over else None

    def all_run(self, record: RunRecord) -> bool:
        """Returns true if every group trains, no incident is open and the run holds its spares."""
        state = self.status(record)
        still = all(i.state == "recovered" for i in self.incidents(record))
        return still and all(g.phase == "running" for g in state.groups) and len(state.spares) >= state_spares(record)

    def warm(self, record: RunRecord) -> bool:
        """Returns true if every spare has its warm process."""
        spares = self.status(record).spares
        return all(node.warm == "ready" for node in status.node_status(self.mirror()) if node.node in spares)

    def digests_equal(self, record: RunRecord, since: float, within_s: float = 90) -> None:
        """Waits until both replicas have hashed the same twice since then; they must never differ."""
        eventually(lambda: len(equal_digests(self, record, since)) >= 2, within_s, "the replicas' digests are equal")


def state_spares(record: RunRecord) -> int:
    return record.spec.allocation.spares


@contextmanager
def slurm_world(folder: Path, toys: bool = True, nodes: int = 4, **about: Any) -> Iterator[SlurmWorld]:
    """Yields a world with a supervisor that leads. `about`: fields of `own_slurm.Settings`."""
    # a job does not begin in this folder
    here = {"PYTHONPATH": str(Path(__file__).parents[2])}
    environment = {**here, "SUPERVISOR_PROGRAMS": json.dumps(TOYS)} if toys else here
    server = start_etcd(folder / "etcd")
    try:
        with slurm(folder, nodes, **about) as lab:
            made = SlurmWorld(folder, lab, server, environment)
            try:
                made.supervisor()
                eventually(made.led, 30, "a supervisor leads")
                yield made
            finally:
                made.close()
    finally:
        server.stop()


def rung(incident: Incident) -> tuple[str, Rung]:
    return incident.kind.value, incident.rung
