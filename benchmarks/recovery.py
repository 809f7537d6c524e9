"""Measures how long it takes until all of a run train again, after SIGKILL of one trainer or of a whole node: the same
model (TorchTitan's Llama 3 debug model, and that cut to two layers), with two data-parallel ranks on this machine.

- `everstep`: two groups under a supervisor, with warm nodes and a hot standby; the steps of a group that was killed count
  again with the others' once both have committed together;
- `everstep_node`: all processes of a node are killed at once; a spare node takes its place;
- `torchft_warm`, `torchft_cold`: the same two groups by hand: TorchFT's own lighthouse with a heartbeat timeout of one
  second, and a parent that starts a killed rank at once, by a fork of a process that has imported everything, or by exec.
  The trainer is Everstep's, so that its first step counts here too;
- `torchrun`: TorchTitan's own trainer, two data-parallel ranks; all are started again, from the newest checkpoint (every
  20 steps). PyTorch's elastic agent needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE (pytorch#135712);
- `nvrx`: the same under NVIDIA's in-process restart with a warm spare for each kill (--nvrx FOLDER: where
  nvidia-resiliency-ext 0.4.1 is installed, by `pip install --no-deps --target FOLDER`; left out without).

`all_step_s` runs from the kill until both ranks have finished a step together. `survivor_gap_s` is the longest time between
two steps of the rank that was not killed. `steps_lost` counts steps that were done again. `parts` divides `all_step_s` of
`everstep` without a gap.

`python -m benchmarks.recovery [--kills 8] [--nvrx FOLDER]` writes benchmarks/results/recovery.json. Systems take turns of
four kills.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, world
from supervisor.core.model.spec import (
    AllocationSpec,
    BudgetSpec,
    GroupsSpec,
    PolicySpec,
    RunSpec,
    TitanSpec,
    TorchFTSpec,
)
from supervisor.shell.inspect import status
from supervisor.wire.address import free_port
from supervisor.wire.log_follower import Followed
from supervisor.wire.node_logs import rank_of
from supervisor.wire.records import RunRecord, TrainerLaunch, encode

RESULTS = Path(__file__).parent / "results" / "recovery.json"
RUN = "recovery"
MODELS = {"small": "llama3-debug-small", "debug": "llama3-debug"}
GOALS_S = {"everstep small": 0.35, "everstep debug": 0.75, "everstep_node small": 2.0}
GOAL_GAP_S = 0.25
GOAL_TIMES = {"torchrun": 10.0, "nvrx": 6.0, "torchft_warm": 3.0}
TURN = 4
"""Kills of a system before the next has its turn."""
BETWEEN = 15
"""Steps of all together before each kill."""
BEGIN_S, BACK_S = 180.0, 120.0
VICTIM, OTHER = 1, 0
TORCHFT = TorchFTSpec(heartbeat_timeout_ms=1000, process_group_timeout_ms=10_000, quorum_timeout_ms=120_000)
BY_HAND = {"SUPERVISOR_NO_GATE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Step:
    """A step that counts."""

    t: float
    who: int
    """0 or 1: the group, or the rank."""
    number: int
    life: str
    """Names this start of the process."""
    whole: bool
    """True if both took part in it."""
    pid: int = 0


def spec_of(model: str) -> RunSpec:
    never = 10**6
    return RunSpec(
        name=RUN,
        titan=TitanSpec(recipe=MODELS[model], steps=never, checkpoint_interval_steps=20),
        groups=GroupsSpec(count=2),
        allocation=AllocationSpec(nodes=2, spares=1),
        torchft=TorchFTSpec(),
        # kills every few seconds are no restart loop
        policy=PolicySpec(
            budget=BudgetSpec(restart=never, replace=never, reallocate=never), backoff_first_s=0.0, backoff_max_s=0.0
        ),
    )


class System(ABC):
    """One way to train, while it runs."""

    def __init__(self, model: str, folder: Path, after: ExitStack) -> None:
        self.spec, self.folder, self.after = spec_of(model), folder, after
        self.steps: list[Step] = []
        self.parts: dict[str, float] = {}
        """Parts of the newest recovery, in seconds."""
        self._files: dict[Path, Followed] = {}

    @abstractmethod
    def files(self) -> Iterator[Path]:
        """Yields the files with its steps."""

    @abstractmethod
    def read(self, path: Path, line: dict[str, Any]) -> None:
        """Takes a new line of one of them."""

    def look(self) -> None:
        """Reads what is new."""
        for path in self.files():
            file = self._files.setdefault(path, Followed(path))
            for line in file.lines():
                self.read(path, json.loads(line))

    def of(self, who: int, since: float = 0.0) -> list[Step]:
        return [step for step in self.steps if step.who == who and step.t > since]

    def kill(self) -> None:
        """Kills the victim, by its newest step."""
        os.kill(self.of(VICTIM)[-1].pid, signal.SIGKILL)

    def ready(self) -> bool:
        """Returns true if all is there that a kill needs."""
        return True

    def back(self, at: float, lives: frozenset[str]) -> float | None:
        """Returns when both had made a step together after a kill at that time; None: not yet. `lives`: of before."""
        new = [step for step in self.steps if step.t > at and step.whole and step.life not in lives]
        times = [min((step.t for step in new if step.who == who), default=None) for who in (VICTIM, OTHER)]
        return max(found) if len(found := [t for t in times if t is not None]) == 2 else None

    def lost(self, at: float, back: float) -> int:
        """Returns how many steps were done again."""
        before = max(step.number for step in self.steps if step.t <= at)
        return max(0, before + 1 - min(step.number for step in self.steps if at < step.t <= back))

    def divide(self, at: float, back: float) -> dict[str, float]:
        """Returns the parts of a recovery, where they are known."""
        return {}


class Groups(System):
    """Two groups of Everstep's trainer."""

    def __init__(self, model: str, folder: Path, after: ExitStack) -> None:
        super().__init__(model, folder, after)
        self.events: list[tuple[int, int, dict[str, Any]]] = []
        """Group, generation, line."""
        self._pids: dict[str, int] = {}

    @property
    @abstractmethod
    def nodes(self) -> Path:
        """The folder of the nodes' folders."""

    def files(self) -> Iterator[Path]:
        return self.nodes.glob(f"*/ranks/{RUN}.*/steps.jsonl")

    def read(self, path: Path, line: dict[str, Any]) -> None:
        who = rank_of(path.parent.name, RUN)
        assert who is not None
        life = f"{who[0]}.{who[1]}"
        self.events.append((who[0], who[1], line))
        if line["event"] == "start":
            self._pids[life] = line["pid"]
        elif line["event"] == "step" and line["committed"]:
            whole = line["participants"] == 2
            self.steps.append(Step(line["t"], who[0], line["step"], life, whole, self._pids[life]))

    def back(self, at: float, lives: frozenset[str]) -> float | None:
        """One group alone goes on, so its life is no new one."""
        new = [s for s in self.of(VICTIM, at) if s.whole and s.life not in lives]
        with_it = [s for s in self.of(OTHER, at) if s.whole and new and s.number >= new[0].number]
        return max(new[0].t, with_it[0].t) if with_it else None

    def lost(self, at: float, back: float) -> int:
        """Counts the attempts of the other group that were not committed, too."""
        in_vain = [
            line
            for group, _, line in self.events
            if group == OTHER and line["event"] == "step" and not line["committed"] and at < line["t"] <= back
        ]
        return super().lost(at, back) + len(in_vain)

    def divide(self, at: float, back: float) -> dict[str, float]:
        generation = max(g for group, g, _ in self.events if group == VICTIM)
        marks = [(self.spawned(generation), "until it was forked")]
        for event, part in (
            ("start", "its start"),
            ("built", "built"),
            ("admitted", "admitted"),
            ("step", "first step"),
        ):
            mine = (line["t"] for g, n, line in self.events if (g, n, line["event"]) == (VICTIM, generation, event))
            marks.append((next(mine, back), part))
        marks.append((back, "first step with all"))
        found, before = {}, at
        for t, part in marks:
            if t >= before:
                found[part], before = round(t - before, 3), t
        return found

    def spawned(self, generation: int) -> float:
        """Returns when the node was about to start that generation of the victim."""
        return 0.0


class Everstep(Groups):
    """Under a supervisor."""

    pool = 3
    """Nodes that the engine has."""

    def __init__(self, model: str, folder: Path, after: ExitStack) -> None:
        super().__init__(model, folder, after)
        self.world: World = after.enter_context(world(folder, nodes=self.pool, toys=False, warm_torch=True))
        self.world.supervisor()
        self.record: RunRecord = self.world.launch(self.spec)

    @property
    def nodes(self) -> Path:
        return self.world.system / "nodes"

    def spawned(self, generation: int) -> float:
        name = f"{RUN}.{VICTIM}.{generation}.0"
        for shim in self.nodes.glob("*/shim.jsonl"):
            for line in shim.read_text().splitlines():
                if (body := json.loads(line)).get("event") == "spawned" and body.get("name") == name:
                    return float(body["t"])
        return 0.0


class EverstepNode(Everstep):
    """Under a supervisor, and nodes are lost: their hosts get no group any more."""

    pool = 3 + TURN

    def __init__(self, model: str, folder: Path, after: ExitStack) -> None:
        super().__init__(model, folder, after)
        self.killed: set[str] = set()
        """A dead node is registered until its lease lapses."""

    def ready(self) -> bool:
        """Returns true if a warm spare is there."""
        used = {group.node for group in self.world.status(self.record).groups} | self.killed
        nodes = status.node_status(self.world.mirror())
        return any(node.alive and node.warm == "ready" and node.node not in used for node in nodes)

    def kill(self) -> None:
        node = self.world.status(self.record).groups[VICTIM].node
        self.killed.add(node)
        self.world.kill_node(node)


@dataclass
class ByHand:
    """The ranks of a job that a parent starts again."""

    folder: Path
    spec: RunSpec
    lighthouse: str
    warm: bool
    channel: socket.socket | None = None
    starts: dict[int, int] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def begin(self, group: int) -> int:
        """Starts a rank; returns its pid."""
        number = self.starts[group] = self.starts.get(group, 0) + 1
        # apart, so that it takes no id of the one before, as Everstep's restart in place does
        folder = self.folder / "nodes" / f"n{group}-{number}" / "ranks" / f"{RUN}.{group}.{number}.0"
        folder.mkdir(parents=True)
        launch = TrainerLaunch(
            run=RUN, group=group, generation=number, rank=0, world_size=1, groups=2, min_groups=1, node=f"n{group}",
            node_address="127.0.0.1", master_port=free_port(), lighthouse=self.lighthouse, run_dir=str(self.folder),
            rank_dir=str(folder), titan=self.spec.titan, torchft=TORCHFT, writer=group == 0,
        )  # fmt: skip
        (folder / "launch.json").write_bytes(encode(launch))
        log = folder / "output.log"
        if self.channel is None:
            with log.open("wb") as file:
                return subprocess.Popen(
                    [sys.executable, "-m", "titan_actor.trainer", str(folder / "launch.json")],
                    stdout=file, stderr=file, env={**os.environ, **BY_HAND},
                    start_new_session=True,  # as torchrun does: the kernel shares processors out by session
                ).pid  # fmt: skip
        self.channel.send(
            json.dumps(
                {"launch": str(folder / "launch.json"), "log": str(log), "env": {**os.environ, **BY_HAND}}
            ).encode()
        )
        answer = json.loads(self.channel.recv(1 << 18))
        return int(answer["pid"])

    def tend(self) -> None:
        """Starts what ends, until the end."""
        pids = {self.begin(group): group for group in (0, 1)}
        while not self.ended.is_set():
            with suppress(ChildProcessError):
                for pid in list(pids):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        group = pids.pop(pid)
                        pids[self.begin(group)] = group
            time.sleep(0.002)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class TorchFT(Groups):
    """By hand, with TorchFT's own lighthouse."""

    warm = False

    def __init__(self, model: str, folder: Path, after: ExitStack) -> None:
        super().__init__(model, folder, after)
        at = f"127.0.0.1:{free_port()}"
        program = str(Path(sys.executable).with_name("torchft_lighthouse"))
        command = [program, "--bind", at, "--min_replicas", "1", "--join_timeout_ms", str(TORCHFT.join_timeout_ms)]
        lighthouse = subprocess.Popen([*command, "--heartbeat_timeout_ms", str(TORCHFT.heartbeat_timeout_ms)])
        after.callback(lighthouse.wait)
        after.callback(lighthouse.kill)
        hand = ByHand(folder, self.spec, at, self.warm)
        if self.warm:
            hand.channel = after.enter_context(warm_process())
        tends = threading.Thread(target=hand.tend, daemon=True)
        tends.start()
        after.callback(tends.join)
        after.callback(hand.ended.set)

    @property
    def nodes(self) -> Path:
        return self.folder / "nodes"


class TorchFTWarm(TorchFT):
    warm = True


def adopt() -> None:
    """Has what is started here stay below this process, whichever process between ends."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


@contextmanager
def warm_process() -> Iterator[socket.socket]:
    """Yields the way to a process that has imported everything, and forks ranks, which become children of this process."""
    adopt()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        command = [sys.executable, "-m", "titan_actor.warm", "--fd", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**os.environ, **BY_HAND})
        theirs.close()
        assert json.loads(ours.recv(1 << 18)).get("ready"), "it is warm"
        yield ours
    process.wait()


class Plain(System):
    """TorchTitan's own trainer, two data-parallel ranks."""

    def __init__(self, model: str, folder: Path, after: ExitStack) -> None:
        super().__init__(model, folder, after)
        self.file = folder / "spec.json"
        self.file.write_bytes(encode(RunRecord(spec=self.spec, run_dir=str(folder), launched_unix_s=0.0)))
        for process in self.start():
            after.callback(self.end, process)

    @abstractmethod
    def start(self) -> Iterator[subprocess.Popen[bytes]]:
        """Yields what was started."""

    def spawn(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / "output.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command],
                stdout=log, stderr=log, env={**os.environ, **BY_HAND, **environment}, start_new_session=True,
            )  # fmt: skip

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()  # torchrun's ranks have sessions of their own, and it ends them
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def files(self) -> Iterator[Path]:
        return self.folder.glob("steps.*.jsonl")

    def read(self, path: Path, line: dict[str, Any]) -> None:
        self.steps.append(Step(line["t"], line["rank"], line["step"], line["life"], True, line["pid"]))


class Torchrun(Plain):
    def start(self) -> Iterator[subprocess.Popen[bytes]]:
        yield self.spawn(
            *("-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=1000"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=recovery"),
            *("-m", "benchmarks.recovery_rank", str(self.file), str(self.folder)),
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )


class Nvrx(Plain):
    where = ""

    def start(self) -> Iterator[subprocess.Popen[bytes]]:
        port, count = free_port(), 2 + TURN
        for slot in range(count):
            yield self.spawn(
                *("-m", "benchmarks.recovery_rank", str(self.file), str(self.folder), "--nvrx", str(port)),
                RANK=str(slot), LOCAL_RANK=str(slot), SLOT=str(slot), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(free_port()), PYTHONPATH=os.pathsep.join((os.environ.get("PYTHONPATH", ""), self.where)),
            )  # fmt: skip


SYSTEMS: dict[str, type[System]] = {
    "everstep": Everstep,
    "everstep_node": EverstepNode,
    "torchft_warm": TorchFTWarm,
    "torchft_cold": TorchFT,
    "torchrun": Torchrun,
    "nvrx": Nvrx,
}


def turn(name: str, model: str, kills: int) -> Iterator[dict[str, Any]]:
    """Yields what each kill of a turn took."""
    with tempfile.TemporaryDirectory(prefix="ev", dir="/tmp") as folder, ExitStack() as after:
        system, since = SYSTEMS[name](model, Path(folder), after), 0.0
        for number in range(kills):

            def settled() -> bool:
                system.look()
                return all(sum(s.whole for s in system.of(who, since)) >= BETWEEN for who in (VICTIM, OTHER))  # noqa: B023

            eventually(settled, BEGIN_S, f"both train ({name}, kill {number})")
            eventually(system.ready, BEGIN_S, "a spare is there")
            system.look()
            count = len(system.of(VICTIM))

            def steps() -> bool:
                system.look()
                return len(system.of(VICTIM)) > count  # noqa: B023

            eventually(steps, BEGIN_S, "the victim makes another step")
            lives = frozenset(step.life for step in system.steps)
            at = time.time()
            system.kill()

            def back() -> float | None:
                system.look()
                return system.back(at, lives)  # noqa: B023

            try:
                since = eventually(back, BACK_S, "both train again")
            except AssertionError:
                yield {"all_step_s": None, "survivor_gap_s": None, "steps_lost": None}
                return
            times = [s.t for s in system.of(OTHER) if at - 60 < s.t <= since]
            gap = max(b - a for a, b in itertools.pairwise(times) if b > at)
            yield {
                "all_step_s": round(since - at, 3),
                "survivor_gap_s": round(gap, 3),
                "steps_lost": system.lost(at, since),
                "parts": system.divide(at, since),
            }


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the lists of a system, and their medians."""
    found: dict[str, Any] = {key: [t[key] for t in trials] for key in ("all_step_s", "survivor_gap_s", "steps_lost")}
    back = [t for t in trials if t["all_step_s"] is not None]
    found["not_back"] = len(trials) - len(back)
    if back:
        found["median"] = {
            k: statistics.median(t[k] for t in back) for k in ("all_step_s", "survivor_gap_s", "steps_lost")
        }
    if back and back[0]["parts"]:
        names = dict.fromkeys(part for t in back for part in t["parts"])
        found["parts"] = {name: [t["parts"].get(name, 0.0) for t in back] for name in names}
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=2 * TURN)
    options.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--nvrx", default="", metavar="FOLDER")
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    Nvrx.where = given.nvrx
    names = [name for name in given.systems if name != "nvrx" or given.nvrx]
    load_before, trials = os.getloadavg()[0], dict[str, list[dict[str, Any]]]()
    made = {
        "about": "python -m benchmarks.recovery", "at": time.strftime("%Y-%m-%d"), "commit": commit(),
        "machine": machine(), "load_before": round(load_before, 1), "kills": given.kills,
        "goals": {"all_step_s": GOALS_S, "survivor_gap_s": GOAL_GAP_S, "times_everstep": GOAL_TIMES},
    }  # fmt: skip
    systems: dict[str, Any] = {}
    for done in range(0, given.kills, TURN):
        for model, name in itertools.product(given.models, names):
            for trial in turn(name, model, min(TURN, given.kills - done)):
                trials.setdefault(f"{name} {model}", []).append(trial)
                print(name, model, trial, flush=True)
            # after each turn: a system that does not start loses no other's
            systems = {name: summary(of) for name, of in trials.items()}
            given.out.write_text(json.dumps({**made, "systems": systems}, indent=1) + "\n")
    print(json.dumps({name: of.get("median") for name, of in systems.items()}, indent=1))


if __name__ == "__main__":
    main()
