"""Observes a live run through etcd and breaks it on this machine."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fault_injection.chaos.runner import Look
from fault_injection.chaos.schedule import Planned
from fault_injection.chaos.watch import Watcher
from fault_injection.faults import acts
from fault_injection.faults.fault import Fault, Site, Target
from fault_injection.faults.site import NOT_OURS, SHARED_DISK, SHARED_NETWORK, no_collective, no_memory_cgroup, no_reset
from fault_injection.in_rank import causes
from fault_injection.testbed import slurm
from fault_injection.testbed.system import House
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Grant
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.errors import Fatal, Retryable
from supervisor.ports.store import Store
from supervisor.shell.control import cordons, observe
from supervisor.shell.control.leader import has_ended
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.history.files import Left, Seen
from supervisor.shell.inspect import client, hosts, status
from supervisor.shell.processes import is_running, start_ticks
from supervisor.wire import keys
from supervisor.wire.records import (
    FaultsMade,
    Health,
    LeaderRecord,
    NodeDesired,
    NodeObserved,
    Registration,
    RunRecord,
    TrainerObserved,
    encode,
)

LEARNED_STEPS = 16
"""Steps that each rank must commit before its run is well: warm-up, and enough to learn how long a step takes."""

SLEEP_S = 0.02

STORE_BACK_S = 30.0

GIVEN_BACK_S = 15.0
"""Seconds in which the local engine kills what it must end (10 s after SIGTERM) and clears it away."""

LEADS_WITHIN_S = 30.0
"""Ten times the lease of a leader."""

FILLER = "/filler"
"""A key that no process reads."""


class CompactableStore(Store, Protocol):
    """A store that can be compacted, which no supervisor does."""

    def compact(self, revision: int) -> None: ...


class LiveRun:
    """Implements `runner.Live` and `fault.Scene`. `system`: the folder of `nodes/`. `tended`: restarts what ends."""

    def __init__(
        self,
        store: CompactableStore,
        watcher: Watcher,
        record: RunRecord,
        system: Path,
        tended: Callable[[], Sequence[str]] | None = None,
        house: House | None = None,
    ) -> None:
        self._store, self._watcher, self.record, self.system = store, watcher, record, system
        self._tended, self.house = tended, house
        self.run, self.run_dir = record.spec.name, record.run_dir
        self.allocation = record.spec.allocation
        self._made: dict[str, int] | None = None
        self._telling = threading.Lock()

    # --- runner.Live ---

    @property
    def scene(self) -> LiveRun:
        return self

    def look(self) -> Look:
        with self._watcher.mirror() as mirror:
            now = status.run_status(mirror, self.record)
            incidents = client.incidents(mirror, self.run)
            not_well = self._not_well(mirror, now)
        acted = frozenset(
            (i.id, i.group)
            for i in incidents
            if i.decided is not None and not i.shadow
            and (i.rung > Rung.RIDE_THROUGH or i.generation_after > i.generation_before)  # a suspended one has no rung
        )  # fmt: skip
        ended = f"the run is {now.phase}" if now.phase in (*ENDED, "stopping") else ""
        if ended and now.halt_reason:
            ended += f": {now.halt_reason}"
        step = min((g.step for g in now.groups), default=0)
        return Look(step=step, not_well=not_well, acted=acted, ended=ended, stopped=now.phase == "stopped")

    def target(self, planned: Planned, fault: Fault) -> Target:
        """Returns the victim's processes. Raises Fatal when the group cannot be broken now."""
        with self._watcher.mirror() as mirror:
            group = self._writer(mirror) if fault.writers else planned.group
            rank = 0 if fault.writers else planned.rank
            state = status.run_status(mirror, self.record).groups[group]
            shown = self._ranks(mirror, state)
            node = next((node for node, trainer in shown if trainer.rank == rank), "")
            registered = mirror.record(keys.registration(node), Registration)
        if not node:
            raise Fatal(f"node {state.where or '-'} shows no rank {rank} of group {group}")
        why = self._elsewhere(node)
        if why and not fault.anywhere:
            raise Fatal(why)
        return Target(
            group=group, generation=state.generation, node=node, rank=rank,
            pids={trainer.rank: trainer.pid for _, trainer in shown},
            allocation=registered.allocation if registered is not None else "",
            folder=self.system / "nodes" / node, step=state.step, failpoint=planned.failpoint,
        )  # fmt: skip

    def tend(self) -> None:
        if self.house is not None:
            self.house.tend()
        if self._tended is not None:
            self._tended()

    def made(self, name: str) -> None:
        """Counts a fault for the run's metrics, on top of those that an earlier `supervisor chaos` made."""
        if self._made is None:
            with self._watcher.mirror() as mirror:
                before = mirror.record(keys.faults(self.run), FaultsMade)
            self._made = dict(before.made) if before is not None else {}
        self._made[name] = self._made.get(name, 0) + 1
        threading.Thread(target=self._tell_what_was_made, name="faults-made", daemon=True).start()

    def _tell_what_was_made(self) -> None:
        while True:
            try:
                with self._telling:  # or an older count would be put after a newer one
                    self._store.put(keys.faults(self.run), encode(FaultsMade(made=dict(self._made or {}))))
                return
            except Retryable as error:
                time.sleep(error.after_s)
            except Fatal:
                return  # the store was closed

    def let_go(self) -> None:
        """Frees suspect hosts, but only in a system that was started to be broken."""
        if self._tended is None:
            return
        with self._watcher.mirror() as mirror:
            for host in list(cordons.by_host(mirror)):
                with suppress(Fatal, Retryable):  # it was just freed; or the next call does it
                    hosts.uncordon(self._store, mirror, host)

    # --- fault.Scene ---

    def leader_pid(self) -> int:
        found: list[LeaderRecord] = []

        def leads() -> bool:  # not at once, where this fault comes with another
            found.extend(leader for leader in [self._leader()] if leader is not None)
            return bool(found)

        self.wait(leads, LEADS_WITHIN_S, "a supervisor leads")
        if found[0].host != socket.gethostname():
            raise Fatal(f"the leader is on {found[0].host}: break it there")
        return found[0].pid

    def _leader(self) -> LeaderRecord | None:
        """Returns None while no supervisor leads, also while the record of a killed one is there."""
        with self._watcher.mirror() as mirror:
            return None if self._nobody_leads(mirror) else mirror.record(keys.LEADER, LeaderRecord)

    def agent_pid(self, node: str) -> int:
        with self._watcher.mirror() as mirror:
            registered = mirror.record(keys.registration(node), Registration)
        return registered.agent_pid if registered is not None else 0

    def shim_pid(self, node: str) -> int:
        return int((self.system / "nodes" / node / "shim.lock").read_text())

    def gate_pids(self) -> tuple[int, int]:
        with self._watcher.mirror() as mirror:
            memory = mirror.record(keys.memory(self.run, "run"), Memory)
        if memory is None or not memory.lighthouse.node:
            raise Fatal("the run has no lighthouse")
        seat = memory.lighthouse
        path = self.system / "nodes" / seat.node / "processes" / f"lighthouse.{self.run}.{seat.generation}.json"
        try:
            gate = int(json.loads(path.read_text())["pid"])
            children = Path(f"/proc/{gate}/task/{gate}/children").read_text().split()
        except OSError as error:
            raise Fatal(f"the lighthouse on {seat.node} is not on this machine ({error.filename})") from error
        if len(children) != 1:
            raise Fatal(f"the gate, pid {gate}, has {len(children)} children, not its lighthouse alone")
        return gate, int(children[0])

    def etcd_pids(self) -> Sequence[int]:
        return self.house.etcd_pids() if self.house is not None else [etcd_pid(self.system)]

    def revision(self) -> int:
        return self._store.list(keys.LEADER).revision

    def compact(self, revision: int) -> None:
        self._store.compact(revision)

    def write(self, size: int) -> None:
        self._store.put(FILLER, os.urandom(size))

    def ranks(self) -> Mapping[tuple[int, int, int], int]:
        with self._watcher.mirror() as mirror:
            groups = status.run_status(mirror, self.record).groups
            ranks = [trainer for g in groups for _, trainer in self._ranks(mirror, g)]
        return {(t.group, t.generation, t.rank): t.pid for t in ranks}

    def nodes(self) -> Mapping[int, Sequence[str]]:
        with self._watcher.mirror() as mirror:
            return {g.group: g.nodes for g in status.run_status(mirror, self.record).groups}

    def grants(self) -> Mapping[str, Grant]:
        with self._watcher.mirror() as mirror:
            wanted = [a.key for a in observe.memory(mirror, self.run).allocations.values() if a.state == "wanted"]
            found = [(key, mirror.record(keys.grant(self.run, key), Grant)) for key in wanted]
        return {key: grant for key, grant in found if grant is not None}

    def phase(self) -> str:
        with self._watcher.mirror() as mirror:
            return str(status.run_status(mirror, self.record).phase)

    def resume(self, because: str) -> None:
        with self._watcher.mirror() as mirror:
            client.resume(self._store, mirror, self.record, because)

    def told(self, node: str) -> set[str]:
        with self._watcher.mirror() as mirror:
            health = mirror.record(keys.health(node), Health)
        facts = health.facts if health is not None else ()
        return {fact.kind for fact in facts} | {f"xid {fact.xid}" for fact in facts if fact.xid}

    def kill_node(self, target: Target) -> str:
        return acts.kill_node(target.group, target.node, self.system).evidence

    def take_allocation(self, target: Target) -> str:
        return acts.take_allocation(target.group, target.node, target.allocation, self.system).evidence

    def left_out(self, group: int) -> bool:
        with self._watcher.mirror() as mirror:
            return bool(observe.memory(mirror, self.run).groups[group].left_out)

    def restart(self, group: int) -> None:
        def asked() -> bool:
            try:
                client.restart(self._store, self.record, group)
            except Retryable:
                return False
            return True

        self.wait(asked, STORE_BACK_S, f"etcd takes the wish to restart group {group}")

    def wait(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        until = time.monotonic() + within_s
        while not reached():
            if time.monotonic() > until:
                raise Fatal(f"not within {within_s:g} s: {what}")
            self.tend()
            time.sleep(SLEEP_S)

    # --- what can be broken, and what is left ---

    def seen(self) -> list[Seen]:
        """Returns what etcd has shown of the run so far."""
        return list(self._watcher.seen)

    def site(self) -> Site:
        """Returns what can be broken on this machine in this run."""
        with self._watcher.mirror() as mirror:
            now = status.run_status(mirror, self.record)
        nodes = [node for group in now.groups for node in group.nodes]
        ranks = self.record.spec.groups.ranks_per_group
        deaf = [
            f"rank {rank} of group {g.group}"
            for g in now.groups
            for rank in range(ranks)
            if not causes.obeys(self.run_dir, g.group, g.generation, rank)
        ]
        on_slurm = self.allocation.engine == "slurm"
        disks = all((self.system / "nodes" / node).is_mount() for node in nodes)
        return Site(
            engine=self.allocation.engine,
            not_here=next((why for node in nodes if (why := self._elsewhere(node))), ""),
            not_obeying=f"{deaf[0]} does not look for orders (fault_injection/in_rank/trainer.py)" if deaf else "",
            no_memory_cgroup=no_memory_cgroup(),
            no_own_disks="" if disks and nodes else SHARED_DISK,
            no_cut=SHARED_NETWORK,
            no_filter=SHARED_NETWORK,
            no_house=NOT_OURS,
            no_collective=no_collective(ranks),
            no_reset=no_reset(),
            no_faketime=NOT_OURS,
            no_trace=NOT_OURS,
            no_own_etcd="" if self._own_etcd() else f"its etcd is not one that was started in {self.system}",
            **(slurm.reasons(self.allocation.slurm, self.grants().values()) if on_slurm else {}),
        )

    def left(self, ended: bool) -> Left:
        """Returns processes and allocations that should not be there: any, if the run has `ended`. Otherwise those of
        older generations, and what the local engine holds unwanted, after some time for what was just released or
        requested."""
        if not ended:
            with suppress(Fatal):
                self.wait(lambda: not self._held(ended), GIVEN_BACK_S, "what is not wanted is given back")
        with self._watcher.mirror() as mirror:
            generations = {g.group: g.generation for g in status.run_status(mirror, self.record).groups}
        processes = []
        records = [
            *self.system.glob(f"nodes/*/processes/{self.run}.*.json"),
            *self.system.glob(f"nodes/*/processes/lighthouse.{self.run}.*.json"),
        ]
        for path in sorted(records):
            try:
                body = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            of = str(body["name"]).split(".")
            current = not ended and (of[0] == "lighthouse" or int(of[2]) >= generations.get(int(of[1]), 0))
            if not current and not body["exited"] and is_running(body["pid"], body["start_ticks"]):
                processes.append(f"{body['name']} (pid {body['pid']}) on {path.parts[-3]}")
        return Left(processes=tuple(processes), allocations=self._held(ended))

    def _held(self, ended: bool) -> tuple[str, ...]:
        """Returns this run's allocations that the local engine holds and that are not wanted."""
        keys_ = [path.stem.removeprefix("allocation-") for path in sorted(self.system.glob("local/allocation-*.json"))]
        held = [key for key in keys_ if re.fullmatch(rf"{re.escape(self.run)}-a\d+", key)]
        if ended or not held:
            return tuple(held)
        with self._watcher.mirror() as mirror:
            known = observe.memory(mirror, self.run).allocations
        return tuple(key for key in held if key not in known or known[key].state != "wanted")

    def stop(self, within_s: float) -> None:
        """Asks the run to stop, and waits until nothing of it is left or the time is over."""
        client.change_control(self._store, self.run, lambda control: replace(control, stop=True))

        def ended() -> bool:
            self.tend()
            return self.look().stopped and self.left(ended=True) == Left(processes=(), allocations=())

        with suppress(Fatal):
            self.wait(ended, within_s, "the run stops")

    # --- looking ---

    def _not_well(self, mirror: Mirror, now: status.RunStatus) -> str:
        if now.phase != "running":
            return f"the run is {now.phase}"
        if now.incidents_open:
            return f"incident {now.incidents_open[0]} is open"
        for g in now.groups:
            if g.phase != "running":
                return f"group {g.group} is {g.phase}"
            ranks = [trainer for _, trainer in self._ranks(mirror, g)]
            learned = [t for t in ranks if t.progress is not None and t.progress.commits >= LEARNED_STEPS]
            if len(learned) < self.record.spec.groups.ranks_per_group:
                return f"group {g.group} has committed fewer than {LEARNED_STEPS} steps since its start"
            if any(t.stuck is not None for t in ranks):
                return f"group {g.group} is stuck"
            if g.participants < len(now.groups):  # without it the next fault may hit the only group that is ahead
                return f"group {g.group} made its last step in a quorum of {g.participants} of {len(now.groups)} groups"
        return self._nobody_leads(mirror) or self._no_spare(mirror, now)

    def _nobody_leads(self, mirror: Mirror) -> str:
        """Returns why no supervisor leads; empty if one does. A killed leader's record stays until its lease lapses."""
        leader = mirror.record(keys.LEADER, LeaderRecord)
        if leader is None:
            return "no supervisor leads"
        return f"the leader, pid {leader.pid}, has ended" if has_ended(leader) else ""

    def _no_spare(self, mirror: Mirror, now: status.RunStatus) -> str:
        spec = self.record.spec
        if spec.allocation.nodes + spec.allocation.spares <= spec.groups.nodes:
            return ""
        health = [mirror.record(keys.health(node), Health) for node in now.spares]
        ready = [h for h in health if h is not None and h.warm in ("ready", "off")]
        return "" if ready else "no spare is ready"

    def _ranks(self, mirror: Mirror, group: status.GroupStatus) -> list[tuple[str, TrainerObserved]]:
        """Returns what the group's nodes show of its ranks, each with its node."""
        of_it = (self.run, group.group, group.generation)
        seen = [(node, mirror.record(keys.observed(node), NodeObserved)) for node in group.nodes]
        shown = [(node, trainer) for node, record in seen if record is not None for trainer in record.trainers]
        return [(node, t) for node, t in shown if (t.run, t.group, t.generation) == of_it]

    def _writer(self, mirror: Mirror) -> int:
        for _, desired in mirror.records(keys.DESIRED, NodeDesired):
            for trainer in desired.trainers:
                if trainer.run == self.run and trainer.writer:
                    return trainer.group
        raise Fatal("no group writes checkpoints")

    def _elsewhere(self, node: str) -> str:
        try:
            pid = self.shim_pid(node)
        except (OSError, ValueError):
            return f"node {node} is not one of this machine: there is no {self.system / 'nodes' / node / 'shim.lock'}"
        return "" if start_ticks(pid) is not None else f"node {node} does not run on this machine"

    def _own_etcd(self) -> bool:
        try:
            return start_ticks(etcd_pid(self.system)) is not None
        except Fatal:
            return False


def etcd_pid(system: Path) -> int:
    """Returns the pid of the etcd that `supervisor up` started there. Raises Fatal if there is none."""
    try:
        return int(json.loads((system / "etcd" / "server.json").read_text())["pid"])
    except (OSError, ValueError, KeyError) as error:
        raise Fatal(f"no etcd was started in {system}") from error
