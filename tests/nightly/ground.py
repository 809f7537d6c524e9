"""Takes away the parts that `supervisor up` stands on: `python -m tests.nightly.ground`, which is `make ground`.

A cell kills, ends or freezes one part of an `up` (or all of them): without a run, while one trains, or in the middle of
a recovery. Then `up` is started again where it has ended, and the run must train on, with nothing done twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.decide import machine
from fault_injection.checkers import consistency
from fault_injection.doubles.toys import TOYS
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import toy_spec
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import TitanSpec, TorchFTSpec
from supervisor.ports.errors import Retryable
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.dev.home import endpoints_of, system_folder
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.history import files
from supervisor.shell.inspect import client, status
from supervisor.shell.processes import Process, with_environment
from supervisor.wire import checkpoints, keys
from supervisor.wire.programs import PART
from supervisor.wire.records import RunRecord

Victim = Literal["up", "supervisor", "host", "node", "etcd", "all"]
Hit = Literal["KILL", "TERM", "STOP", "TWICE"]
"""TWICE: TERM, and again before the runs have stopped."""
Moment = Literal["idle", "training", "recovery"]

RESULTS = Path("benchmarks/results/ground.json")
FROZEN_S = 4.0
"""Twice the lease of the toys' nodes."""
PATIENCE_S = 90.0
SOME_STEPS = 20
"""Steps saved before a cell strikes, so that a start from the beginning is seen."""
MARK = "GROUND"
"""Environment variable that every process of a cell inherits; it also finds those that have lost their parents."""


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    victim: Victim
    hit: Hit
    moment: Moment

    def __str__(self) -> str:
        return f"{self.victim}-{self.hit}-{self.moment}"

    @property
    def ends_up(self) -> bool:
        return self.victim in ("up", "all") and self.hit != "STOP"

    @property
    def leaves_trainers(self) -> bool:
        """True if the hit gives no trainer a reason to be started again."""
        return self.moment == "training" and self.victim in ("up", "supervisor", "etcd", "host") and not self.is_a_wish

    @property
    def is_a_wish(self) -> bool:
        """True if the hit is a person's wish to end the run."""
        return self.victim == "up" and self.hit in ("TERM", "TWICE")

    @property
    def keeps_steps(self) -> bool:
        """True if a group lives on, from which the others heal: no committed step is made again."""
        everything_ends = self.victim == "all" and self.hit != "STOP"
        return self.moment != "idle" and not everything_ends and not self.is_a_wish


CELLS = [
    Cell(v, h, m)
    for v in get_args(Victim)
    for h in get_args(Hit)
    for m in get_args(Moment)
    # without a run there is no node; a second wish is for `up` alone
    if (v, m) != ("node", "idle") and (h != "TWICE" or (v == "up" and m != "idle"))
]


class Wrong(Exception):
    """A cell ended otherwise than it must."""


class Ground:
    """A home with an `up` in a process of its own, and toys in the place of trainers."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.system = system_folder(self.runs)
        self.log = folder / "up.log"
        self.folder = folder
        # as titan_actor sets it: on a full disk each line of TorchFT's native log costs a call of the quorum
        self.environment = {
            **os.environ,
            "SUPERVISOR_PROGRAMS": json.dumps(TOYS),
            MARK: str(folder),
            "RUST_LOG": "warn",
        }
        self.up = self.start()
        self.record: RunRecord | None = None

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "supervisor.cli", "up", "--nodes", "4", "--cold", "--home", str(self.runs)]
        already = self.log.read_text().count("\nup: ") if self.log.exists() else 0
        with self.log.open("ab") as log:
            log.write(b"\n")
            log.flush()
            started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

        def is_up() -> bool:
            if started.poll() is not None:
                raise Wrong(f"up ended with {started.returncode}: {self.log.read_text()[-500:]}")
            return self.log.read_text().count("\nup: ") > already

        eventually(is_up, PATIENCE_S, "up is up")
        return started

    @contextlib.contextmanager
    def store(self) -> Iterator[EtcdStore]:
        made = connect([endpoints_of(self.runs)])
        try:
            yield made
        finally:
            made.close()

    def mirror(self) -> Mirror:
        def read() -> Mirror | None:
            with contextlib.suppress(Retryable), self.store() as store:
                return Mirror(store.list(keys.PREFIX))
            return None

        return eventually(read, PATIENCE_S, "etcd answers")

    def memory(self) -> Memory:
        assert self.record is not None
        return observe.memory(self.mirror(), self.record.spec.name)

    def generations(self) -> tuple[int, ...]:
        return tuple(g.generation for g in self.memory().groups.values())

    def launch(self) -> None:
        """Launches two groups that step in real quorums, and a spare."""
        spec = toy_spec("ground", groups=2, spares=1, healthy_after_s=1.0)
        torchft = TorchFTSpec(quorum_timeout_ms=60_000, quorum_retries=120)
        overrides = {"toy.mode": "quorum", "toy.step_s": 0.1, "toy.keeps": True}
        titan = TitanSpec(steps=10**6, checkpoint_interval_steps=10, overrides=overrides)

        def launched() -> RunRecord | None:
            with contextlib.suppress(Retryable), self.store() as store:
                if keys.LEADER in Mirror(store.list(keys.PREFIX)).items:
                    return client.launch(store, replace(spec, titan=titan, torchft=torchft), self.runs)
            return None

        self.record = eventually(launched, PATIENCE_S, "a supervisor leads")

    def newest_commits(self, since: float) -> dict[int, dict[str, Any]]:
        """group -> its newest committed step since then."""
        newest: dict[int, dict[str, Any]] = {}
        for path in self.system.glob("nodes/*/ranks/ground.*/steps.jsonl"):
            whole = path.read_bytes().rpartition(b"\n")[0]
            if whole:
                line = json.loads(whole.rpartition(b"\n")[2])
                if line["t"] > max(since, newest.get(line["group"], {"t": 0.0})["t"]):
                    newest[line["group"]] = line
        return newest

    def newest_step(self, since: float) -> int:
        return max((line["step"] for line in self.newest_commits(since).values()), default=0)

    def first_step(self, since: float) -> int:
        """The oldest step that any group has committed since then."""
        steps = []
        for path in self.system.glob("nodes/*/ranks/ground.*/steps.jsonl"):
            lines = map(json.loads, path.read_bytes().rpartition(b"\n")[0].splitlines())
            steps += [line["step"] for line in lines if line["committed"] and line["t"] > since]
        return min(steps)

    def saved(self) -> int:
        """The step of the newest complete checkpoint; 0: there is none."""
        if self.record is None:
            return 0
        return max((step for step, _, mark in checkpoints.listed(self.record.run_dir) if mark is not None), default=0)

    def trains(self, since: float) -> bool:
        """True if both groups have committed in one quorum of two since then."""
        newest = self.newest_commits(since)
        return len(newest) == 2 and len({(x["quorum_id"], x["participants"]) for x in newest.values()} - {(-1, 2)}) == 1

    def wait_until_it_trains(self, since: float) -> None:
        eventually(lambda: self.trains(since), PATIENCE_S, "both groups train together")

    # --- victims ---

    def all(self) -> list[Process]:
        return list(with_environment(MARK, str(self.folder)))

    def victims(self, cell: Cell) -> list[Process]:
        match cell.victim:
            case "up":
                return [Process.of(self.up)]
            case "supervisor" | "host":
                return list(with_environment(PART, f"{self.system}:host:{cell.victim}"))
            case "etcd":
                server = json.loads((self.system / "etcd" / "server.json").read_text())
                return [Process(server["pid"], server["start_ticks"])]
            case "node":
                node = self.memory().groups[0].first_node
                pid = int((self.system / "nodes" / node / "shim.lock").read_text())
                return [p for p in self.all() if p.pid == pid]
            case "all":
                return self.all()

    def break_one(self) -> None:
        """Causes the recovery in the middle of which the cell strikes: kills a trainer of group 1."""
        node = self.memory().groups[1].first_node
        before = self.generations()
        for path in self.system.glob(f"nodes/{node}/processes/ground.1.*.json"):
            about = json.loads(path.read_text())
            if about["pid"] and not about["exited"]:
                os.kill(about["pid"], signal.SIGKILL)
        eventually(lambda: self.generations() != before, PATIENCE_S, "it is decided what is done")

    def hit(self, cell: Cell) -> None:
        victims = self.victims(cell)
        if not victims:
            raise Wrong(f"there is no {cell.victim}")
        _signal(victims, signal.Signals["SIGTERM" if cell.hit == "TWICE" else f"SIG{cell.hit}"])
        if cell.hit == "TWICE":
            eventually(lambda: "a last checkpoint first" in self.log.read_text(), PATIENCE_S, "it begins to stop")
            _signal(victims, signal.SIGTERM)
        if cell.hit == "STOP":
            until = time.monotonic() + FROZEN_S
            eventually(lambda: time.monotonic() > until, 2 * FROZEN_S, "they stay frozen for a while")
            _signal(victims, signal.SIGCONT)

    # --- a cell ---

    def play(self, cell: Cell) -> None:
        """Plays one cell. Raises Wrong, or AssertionError when an expected state does not come in time."""
        if cell.moment != "idle":
            self.launch()
            self.wait_until_it_trains(0.0)
        before = self.generations() if self.record is not None else ()
        if cell.moment != "idle":
            eventually(lambda: self.saved() >= SOME_STEPS, PATIENCE_S, "there are steps to lose")
        made, saved = self.newest_step(0.0), self.saved()
        if cell.moment == "recovery":
            self.break_one()
        self.hit(cell)
        if cell.ends_up:
            eventually(lambda: self.up.poll() is not None, PATIENCE_S, "up ends")
            self.up = self.start()
        since, kept = time.time(), self.saved()
        if self.record is None:
            self.launch()
        self.wait_until_it_trains(since)
        if cell.hit == "TERM" and cell.is_a_wish and cell.moment == "training" and kept < made:
            raise Wrong(f"step {made} had been committed, and {kept} is the newest that was saved at the stop")
        if cell.moment != "idle" and self.first_step(since) <= saved:
            raise Wrong(f"step {saved} had been saved, and {self.first_step(since)} is made again")
        if cell.keeps_steps and self.newest_step(since) < made:
            raise Wrong(f"step {made} had been committed, and {self.newest_step(since)} is the newest after it")
        if cell.leaves_trainers and self.generations() != before:
            raise Wrong(f"trainers were started again: generations {before}, then {self.generations()}")
        memory = self.memory()
        if cell.leaves_trainers and memory.incidents_seen:
            raise Wrong(f"{memory.incidents_seen} incidents, and no group had failed")
        cordons = {} if cell.victim == "node" else memory.cordons  # a node that is lost is held against its host
        if cordons or status.run_status(self.mirror(), self.record).phase != "running":  # type: ignore[arg-type]
            raise Wrong(f"cordons {dict(cordons)}, phase {memory.phase}")
        self.end()

    def end(self) -> None:
        """Ends the run as a person does; then nothing is left, and the history holds."""
        self.up.terminate()
        self.up.wait(PATIENCE_S)
        eventually(lambda: not self.all(), 30, "nothing is left")
        assert self.record is not None
        read = files.read(self.record.spec.name, Path(self.record.run_dir), self.system)
        wrong = [v for v in consistency.check(read) if v.answer != "pass"]
        if wrong:
            raise Wrong("; ".join(f"{v.checker}: {v.answer} {v.sentences[:2]}" for v in wrong))

    def close(self) -> None:
        """Kills all processes, even after a failure."""
        for process in self.all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.up.wait(10)


def _signal(victims: Sequence[Process], number: int) -> None:
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, number)


def played(cell: Cell, folder: Path) -> None:
    """Plays one cell in a folder of its own. Raises as `Ground.play`."""
    folder.mkdir(parents=True, exist_ok=True)
    ground = Ground(folder)
    try:
        ground.play(cell)
    finally:
        ground.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help="as up-KILL-training; without any: all of them")
    parser.add_argument("--results", type=Path, help=f"where to write what came ({RESULTS} for `make ground`)")
    options = parser.parse_args()
    chosen = [c for c in CELLS if not options.cells or str(c) in options.cells]
    folder = Path(tempfile.mkdtemp(prefix="ground-"))
    rows: dict[str, dict[str, object]] = {}
    for cell in chosen:
        began, why = time.monotonic(), ""
        try:
            played(cell, folder / str(cell))
        except (Wrong, AssertionError) as error:
            why = str(error)
        rows[str(cell)] = {"well": not why, "why": why, "seconds": round(time.monotonic() - began, 1)}
        print(f"{'WRONG' if why else 'well ':5} {cell} ({rows[str(cell)]['seconds']} s) {why}", flush=True)
    wrong = [name for name, row in rows.items() if not row["well"]]
    if options.results is not None:
        command = shlex.join(["python", "-m", "tests.nightly.ground", *options.cells])
        body = {"what": __doc__, "command": command, "cells": rows, "wrong": len(wrong)}
        body |= {"commit": commit(), "machine": machine()}
        options.results.write_text(json.dumps(body, indent=1) + "\n")
    print(f"{len(rows) - len(wrong)} of {len(rows)} cells well; files in {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
