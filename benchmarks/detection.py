"""Measures how often and how soon the supervisor's verdict is right: what failed, who did it, and what is done.

`python -m benchmarks.detection [--seeds 10] [--only CAUSE ...]` writes benchmarks/results/detection.json.

One run of two groups with two ranks each is broken repeatedly for a real cause. The seed picks the rank and the moment.
The run is then left alone until it trains again. The control plane is the real one. The trainers are toys that step in
a real TorchFT quorum with real collectives (fault_injection/doubles/toy_model.py): a fault inside TorchTitan looks no
different to the supervisor.

`detect_s` runs from just before the fault until a watch brings the incident with its rung here from etcd, by one
monotonic clock. An incident that rides something through (rung 0) is a first sign, no verdict. A verdict has four parts
that must be right. They are the kind; the culprit; the first rung; and the words of the evidence that name the cause.
The culprit is group and node, and the rank where one is at fault; no other group is acted on. A group that is acted on
between two trials is a stray, and there may be none. Where nothing must be done (rung "none") all parts are right if
nothing was done; the journal must also name a straggler.

With few seeds the 99th percentile is the slowest. A trial without a time misses its goal. So does a cause with fewer
trials than seeds, even if this machine cannot make it. Exits 0 when every goal is met. For a crash the file also has
when its process had ended, by its shim. A kill for memory comes only once the rank has filled it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from benchmarks.detection_cases import CASES, CRASH, HANG, RANK_ZERO, Case, mount, unmount
from benchmarks.detection_rows import HANGS, RIGHT, missed, not_made, row, summary
from fault_injection.chaos.watch import Follower
from fault_injection.checkers import consistency
from fault_injection.faults.fault import Target
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from fault_injection.sim.lane import commit
from fault_injection.testbed.unavailable import NotHere
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec, world_on
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.spec import BudgetSpec, GroupsSpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.core.report.words import said, say
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Item
from supervisor.shell.control import cordons
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.etcd import connect
from supervisor.shell.inspect import client, hosts, status
from supervisor.shell.inspect.status import RunStatus
from supervisor.shell.runfile import parse
from supervisor.wire import keys
from supervisor.wire.records import Health, NodeObserved, Registration, RunRecord, TrainerObserved, decode

RESULTS = Path(__file__).parent / "results" / "detection.json"
NODES = 5
"""Two for the groups, a spare, and two to replace lost ones."""
GROUPS, RANKS = 2, 2
STEP_S = 0.1
LEARNED_STEPS = 16
"""Steps that a generation commits before it is broken: warm-up, enough to learn from, and a checkpoint."""
CHECKPOINT_STEPS = 10
VERDICT_S = 60.0
QUIET = 1.75
"""Times the bound of a hang for which nothing may be done where nothing must be done."""
BACK_S = 120.0
DISK_BYTES = 96 << 20

TORCHFT = TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=1500, process_group_timeout_ms=2500)
LEARNED_S = 1.5 * HANGS.factor * STEP_S
"""Seconds. A learned bound is shorter: a step takes some hundredths of a second longer than `STEP_S`."""


def spec(checkpoint_steps: int = CHECKPOINT_STEPS, hang_at_least_s: float = HANGS.at_least_s) -> RunSpec:
    """Returns a run file whose budgets and backoff let one run live through all of it."""
    hang = replace(HANGS, at_least_s=hang_at_least_s)
    many = BudgetSpec(restart=100_000, replace=100_000, reallocate=100_000, window_s=1.0)
    made = toy_spec(name="detection", groups=GROUPS, spares=1, hang=hang, budget=many, backoff_first_s=0.0)
    made = replace(
        made,
        titan=TitanSpec(
            steps=10**6,
            checkpoint_interval_steps=checkpoint_steps,
            overrides={"toy.mode": "model", "toy.step_s": STEP_S},
        ),
        groups=GroupsSpec(count=GROUPS, ranks_per_group=RANKS),
        torchft=TORCHFT,
    )
    wrong = parse.contradictions(made)
    if wrong:
        raise Fatal("; ".join(wrong))
    return made


class Watcher(Follower):
    """Mirrors etcd's content, and notes when each incident came here."""

    def __init__(self, endpoint: str, run: str) -> None:
        self._store = connect(endpoint.split(","))
        super().__init__(self._store, time.monotonic)
        self._incidents = keys.incident(run, "")
        self.came: list[tuple[float, Incident]] = []
        self.bounds: dict[tuple[int, int], float] = {}
        """(group, generation) -> the bound of a step that its agent had learned, when a step took longer, in this
        trial. A group that only waited for the broken one is reported as late too, and is not started again for
        that."""
        self.ends: dict[tuple[int, int], float] = {}
        """(group, generation) -> when the first of its ranks had ended, by its shim and this machine's clock."""

    def _note(self, item: Item, at: float) -> None:
        if item.key.startswith(self._incidents):
            self.came.append((at, decode(item.value, Incident)))
        elif item.key.startswith(keys.NODES) and item.key.endswith("/observed"):
            self._seen(decode(item.value, NodeObserved))

    def _seen(self, observed: NodeObserved) -> None:
        for trainer in observed.trainers:
            if trainer.stopped:
                self.bounds.setdefault((trainer.group, trainer.generation), HANGS.stopped_s)
            if trainer.stuck is not None:
                self.bounds.setdefault((trainer.group, trainer.generation), trainer.stuck.bound_s)
            if trainer.exit is not None and trainer.exit.ended_s:
                way = (trainer.group, trainer.generation)
                self.ends[way] = min(self.ends.get(way, math.inf), trainer.exit.ended_s)

    def begin(self) -> int:
        """Begins a trial; returns how many incidents came before it."""
        with self._lock:
            self.bounds.clear()
            return len(self.came)

    def since(self, count: int) -> list[tuple[float, Incident]]:
        with self._lock:
            return self.came[count:]

    def stop(self) -> None:
        super().stop()
        self._store.close()


@dataclass
class Bench:
    """The run that is broken."""

    w: World
    record: RunRecord
    watcher: Watcher
    disks: bool
    trials: int = 0
    judged: int = 0
    """Number of incident writes that came before the last trial was over."""
    strays: list[str] = field(default_factory=list)
    """Groups that were acted on between trials."""
    step_s: float = STEP_S

    @property
    def run_dir(self) -> str:
        return self.record.run_dir

    def status(self) -> RunStatus:
        with self.watcher.mirror() as mirror:
            return status.run_status(mirror, self.record)

    def ranks(self, group: int) -> list[TrainerObserved]:
        """Returns the ranks of a group's current generation."""
        state = self.status().groups[group]
        with self.watcher.mirror() as mirror:
            seen = mirror.record(keys.observed(state.node), NodeObserved) if state.node else None
        of_it = (group, state.generation)
        return [t for t in (seen.trainers if seen else ()) if (t.group, t.generation) == of_it]

    def targets(self, rank: int) -> list[Target]:
        found = []
        for state in self.status().groups:
            with self.watcher.mirror() as mirror:
                registered = mirror.record(keys.registration(state.node), Registration)
            pids = {t.rank: t.pid for t in self.ranks(state.group)}
            folder = self.w.system / "nodes" / state.node
            allocation = registered.allocation if registered is not None else ""
            found.append(
                Target(
                    group=state.group,
                    generation=state.generation,
                    node=state.node,
                    rank=rank,
                    pids=pids,
                    allocation=allocation,
                    folder=folder,
                )
            )
        return found

    def step(self) -> int:
        return max(t.progress.step for g in range(GROUPS) for t in self.ranks(g) if t.progress is not None)

    def ordered(self, target: Target, wanted: Order) -> float:
        causes.order(self.run_dir, target.group, target.generation, target.rank, wanted)
        return self.done((target.group, target.generation, target.rank))

    def done(self, *ordered: tuple[int, int, int]) -> float:
        """Returns when the first of these ranks did it. Its neighbours may be ended for it before they get so far."""

        def first() -> float | None:
            moments = [causes.done_at(self.run_dir, *each) for each in ordered]
            return min((at for at in moments if at is not None), default=None)

        return eventually(first, 20, "the rank does as ordered")

    def restart(self, group: int) -> None:
        client.restart(self.w.store, self.record, group)
        before = self.status().groups[group].generation
        eventually(lambda: self.status().groups[group].generation > before, 30, "a person's restart")

    def agent_of(self, node: str) -> int:
        with self.watcher.mirror() as mirror:
            registered = mirror.record(keys.registration(node), Registration)
        return registered.agent_pid if registered is not None else 0

    def settle(self) -> None:
        """Frees all hosts, ends a halt, and waits until everything trains and a spare is warm."""
        eventually(lambda: not self.status().incidents_open or self.status().phase == "halted", BACK_S, "all is over")
        if self.status().phase in ("halted", "stopping"):
            eventually(lambda: self.status().phase == "halted", BACK_S, "it is halted")
            with self.watcher.mirror() as mirror:
                client.resume(self.w.store, mirror, self.record, "the benchmark goes on")
        eventually(self._free, BACK_S, "every host is free again")
        eventually(self._well, BACK_S, "everything trains, and a spare is warm")

    def settled_or_helped(self) -> bool:
        """Settles, and restarts what does not come back as a person would. Returns true if it restarted anything."""
        try:
            self.settle()
        except AssertionError as error:
            print(f"    helped: {error}", flush=True)
            for group in range(GROUPS):
                self.restart(group)
            self.settle()
            return True
        return False

    def _free(self) -> bool:
        with self.watcher.mirror() as mirror:
            held = list(cordons.by_host(mirror))
            for host in held:
                try:
                    hosts.uncordon(self.w.store, mirror, host)
                except Fatal:
                    continue  # it was freed a moment ago
        return not held

    def _well(self) -> bool:
        state = self.status()
        if state.phase != "running" or state.incidents_open or not state.spares:
            return False
        if not all(g.phase == "running" for g in state.groups):
            return False
        for g in range(GROUPS):
            ranks = self.ranks(g)
            learned = [t for t in ranks if t.progress is not None and t.progress.commits >= LEARNED_STEPS]
            if len(learned) < RANKS or any(t.stuck is not None for t in ranks):
                return False
        with self.watcher.mirror() as mirror:
            warm = [mirror.record(keys.health(node), Health) for node in state.spares]
        return any(health is not None and health.warm == "ready" for health in warm)

    def acted(self, count: int) -> dict[str, tuple[float, Incident]]:
        """Returns for each incident after the first `count` writes the first write with an action, and when it came."""
        first: dict[str, tuple[float, Incident]] = {}
        for at, incident in self.watcher.since(count):
            if incident.decided is not None and incident.rung > Rung.RIDE_THROUGH and incident.kind != Kind.REQUESTED:
                first.setdefault(incident.id, (at, incident))
        return first

    def waits_since(self, at: int) -> list[str]:
        """Returns the waits in the journal after that byte of it."""
        with (Path(self.run_dir) / "journal.jsonl").open("rb") as file:
            file.seek(at)
            lines = file.read().splitlines()
        return [
            wait
            for line in lines
            if line.startswith(b"{") and line.endswith(b"}")
            for wait in json.loads(line).get("waits", [])
        ]


def trial(bench: Bench, name: str, seed: int) -> dict[str, Any]:
    """Breaks the run once. Raises NotHere where this machine cannot, Fatal when it went wrong."""
    case, rng = CASES[name], random.Random(f"{name}:{seed}")
    helped = bench.settled_or_helped()
    bench.trials += 1
    bench.strays += [_told(i) for _, i in bench.acted(bench.judged).values()]
    rank = 0 if name in RANK_ZERO else rng.randrange(RANKS)
    group = rng.randrange(GROUPS)
    time.sleep(rng.uniform(0.0, 1.0))
    count, journal = bench.watcher.begin(), (Path(bench.run_dir) / "journal.jsonl").stat().st_size
    with ExitStack() as after:
        target = bench.targets(rank)[group]
        began = case.inject(bench, target, after)
        if case.rung is None:
            found = _quiet(bench, name, target, began, count, journal)
        else:
            found = _judged(bench, case, target, began, count, after)
    bench.judged = len(bench.watcher.came)
    before = {"helped_before": True} if helped else {}
    return {"seed": seed, "group": group, "rank": rank, **before, **found}


def _judged(bench: Bench, case: Case, target: Target, began: float, count: int, after: ExitStack) -> dict[str, Any]:
    def right() -> list[tuple[float, Incident]]:
        return [(at, i) for at, i in bench.acted(count).values() if i.kind in case.kinds]

    def over() -> bool:
        state = bench.status()
        back = not state.incidents_open and all(g.phase == "running" for g in state.groups)
        return state.phase in ("halted", "stopping") or back

    try:
        eventually(lambda: bench.acted(count), VERDICT_S)
        after.close()  # nothing could start on a disk that stays full
        eventually(over, BACK_S)
    except AssertionError:
        pass  # nothing was found, or it does not come back: the result shows both
    acted, main = list(bench.acted(count).values()), right()
    rest = [i for _, i in acted if i.kind not in case.kinds]
    detected = min((at - began for at, _ in main or acted), default=None)
    seen = bench.watcher.since(count)
    bound = bench.watcher.bounds.get((target.group, target.generation))
    result: dict[str, Any] = {
        "found": sorted({f"{i.kind.value} rung {int(i.rung)}" for _, i in main or acted}) or ["nothing"],
        "kind_right": bool(main) and all(i.kind in case.echoes for i in rest),
        "culprit_right": bool(main) and _culprit(bench, case, target, [i for _, i in main], rest),
        "rung_right": bool(main)
        and {i.rung for _, i in main} == {case.rung}
        and all(i.rung in (Rung.RESTART, case.rung) for i in rest),
        "named_right": bool(main) and all(any(case.says in sentence for sentence in said(i.evidence)) for _, i in main),
        "detect_s": _round(detected),
        "first_sign_s": _round(min((at - began for at, _ in seen), default=None)),
        "evidence": [_told(i) for _, i in acted],
    }
    ended = bench.watcher.ends.get((target.group, target.generation))
    if case.family == CRASH and ended is not None:
        result["ended_after_s"] = round(ended - began, 4)
    if case.family == HANG and bound is not None and detected is not None:
        result |= {"bound_s": bound, "times_the_bound": round(detected / bound, 3)}
    return result


def _told(i: Incident) -> str:
    return f"group {i.group} rank {i.rank} on {i.node}: {' | '.join(said(i.evidence))[:400]}"


def _culprit(bench: Bench, case: Case, target: Target, main: list[Incident], rest: list[Incident]) -> bool:
    if case.whole_run:
        with bench.watcher.mirror() as mirror:
            return not cordons.by_host(mirror)
    there = {(i.group, i.node) for i in main} == {(target.group, target.node)}
    named = not case.rank_named or {i.rank for i in main} == {target.rank}
    return there and named and all(i.kind in case.echoes and i.group != target.group for i in rest)


def _quiet(bench: Bench, name: str, target: Target, began: float, count: int, journal: int) -> dict[str, Any]:
    """Watches that nothing is done, and that a straggler is named meanwhile."""
    sentences: list[str] = []
    at: float | None = None
    if name == "straggler":

        def named() -> bool:
            sentences[:] = [
                wait for wait in bench.waits_since(journal) if wait.startswith("group") and " is slow: " in wait
            ]
            return bool(sentences)

        try:
            eventually(named, VERDICT_S)
            at = time.monotonic() - began
        except AssertionError:
            pass
    else:
        time.sleep(QUIET * max(LEARNED_S, bench.record.spec.policy.hang.at_least_s))
    acted = [i for _, i in bench.acted(count).values()]
    signs = sorted({f"{i.kind.value} rung {int(i.rung)}" for _, i in bench.watcher.since(count) if i not in acted})
    well, found = not acted, "nothing"
    if name == "straggler":
        found = "straggler, reported" if sentences else "nothing"
        culprit = bool(sentences) and all(
            s.startswith(f"group {target.group} is slow: rank {target.rank} on node {target.node} ") for s in sentences
        )
        return {
            "found": [found, *sorted({i.kind.value for i in acted})],
            "kind_right": bool(sentences) and well, "culprit_right": culprit and well, "rung_right": well,
            "named_right": culprit,
            "detect_s": _round(at), "evidence": sentences[:1],
        }  # fmt: skip
    return {
        "found": sorted({f"{i.kind.value} rung {int(i.rung)}" for i in acted}) or [found],
        "kind_right": well, "culprit_right": well, "rung_right": well, "named_right": well,
        "detect_s": None, "rode_through": signs, "evidence": [say(i.evidence[0])[:200] for i in acted],
    }  # fmt: skip


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


@contextmanager
def bench(folder: Path, spec_: RunSpec, own_disks: bool = True) -> Iterator[Bench]:
    """Starts the system with a run that trains. `own_disks`: each node has a small disk of its own, where possible."""
    nodes = [folder / "runs" / ".supervisor" / "nodes" / f"n{i + 1}" for i in range(NODES)]
    with ExitStack() as stack:
        disks = [node for node in nodes if own_disks and mount(node, DISK_BYTES)]
        for disk in disks:
            stack.callback(unmount, disk)
        server = start_etcd(folder / "etcd")
        stack.callback(server.stop)
        w = stack.enter_context(world_on(server, folder, nodes=NODES, warm_torch=True))
        w.supervisor()
        record = w.launch(spec_)
        watcher = Watcher(server.endpoint, record.spec.name)
        watcher.start()
        stack.callback(watcher.stop)
        yield Bench(w, record, watcher, disks=len(disks) == NODES)


@dataclass(frozen=True)
class Measured:
    """All trials. `history`: what the checkers say of the whole run. `commit`: of the sources as it began."""

    trials: dict[str, list[dict[str, Any]]]
    not_here: dict[str, str]
    history: dict[str, str]
    machine: dict[str, object]
    commit: str
    strays: list[str]


def measure(seeds: int, names: list[str], partial: Path) -> Measured:
    """Runs all trials, and finds the causes that this machine cannot make. A seed makes each cause once, in an order of
    its own. Where a trial goes wrong the run's files stay."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    not_here: dict[str, str] = {}
    measured_at = commit()
    folder = Path(tempfile.mkdtemp(prefix="detection-"))
    with bench(folder, spec()) as made:
        made.settle()
        before = machine()
        for seed in range(seeds):
            order = [name for name in names if name not in not_here]
            random.Random(seed).shuffle(order)
            for name in order:
                try:
                    found[name].append(_plain(trial(made, name, seed), folder))
                except NotHere as error:
                    not_here[name] = str(error)
                    print(f"{name}: not here: {error}", flush=True)
                    continue
                except (Fatal, AssertionError) as error:
                    found[name].append(not_made(seed, error))
                t = found[name][-1]
                right = "".join("+" if t[key] else "-" for key in RIGHT)
                print(f"seed {seed} {name:20} {right} {t['detect_s']} {', '.join(t['found'])}", flush=True)
                if "-" in right:
                    print(f"    {json.dumps(t)}", flush=True)
                partial.write_text(json.dumps(found, indent=1) + "\n")
        made.settle()
        strays = [*made.strays, *(_told(i) for _, i in made.acted(made.judged).values())]
        verdicts = consistency.check(made.w.history(made.record))
        history = {v.checker: ": ".join((v.answer, *v.sentences[:3])) for v in verdicts}
    done = {name: trials for name, trials in found.items() if trials}
    if all(t[key] for trials in done.values() for t in trials for key in RIGHT) and not strays:
        shutil.rmtree(folder)
    else:
        print(f"its files, for what went wrong: {folder}", flush=True)
    return Measured(done, not_here, history, before, measured_at, json.loads(_plainly(strays, folder)))


def _plain(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the result with paths relative to the repository and the run's folder: none of the machine's own."""
    plain: dict[str, Any] = json.loads(_plainly(found, folder))
    return plain


def _plainly(found: object, folder: Path) -> str:
    return json.dumps(found).replace(f"{folder}/", "").replace(f"{RESULTS.parents[2]}/", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    partial = options.results.with_suffix(".partial.json")
    began = time.monotonic()
    only = "" if options.only == list(CASES) else f" --only {' '.join(options.only)}"
    measured = measure(options.seeds, options.only, partial)
    rows = {name: row(CASES[name], found) for name, found in measured.trials.items()}
    found = summary(rows, options.only, options.seeds, measured.strays)
    short = missed(found, measured.history)
    result = {
        "what": "kind, culprit and rung of what was broken, and the seconds until etcd has the verdict",
        "command": f"python -m benchmarks.detection --seeds {options.seeds}{only}",
        **found,
        "missed": short,
        "kinds": rows,
        "not_measured": measured.not_here,
        "history_checkers": measured.history,
        "took_s": round(time.monotonic() - began),
        "set": {
            "groups": GROUPS, "ranks_per_group": RANKS, "step_s": STEP_S, "node_lease_s": spec().policy.node_lease_s,
            "hang": {"factor": HANGS.factor, "at_least_s": HANGS.at_least_s, "at_most_s": HANGS.at_most_s},
            "torchft_ms": [TORCHFT.heartbeat_timeout_ms, TORCHFT.join_timeout_ms, TORCHFT.process_group_timeout_ms],
        },
        "trials": measured.trials,
        "commit": measured.commit,
        "machine": measured.machine,
    }  # fmt: skip
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    partial.unlink(missing_ok=True)
    print(json.dumps({**found, "missed": short}, indent=1))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
