"""Measures what one CUDA device shows: `python -m benchmarks.gpu [--dry-run] [--results FILE]`.

One system (`supervisor up`, two nodes that share the device) trains, one run after the other:

1. *kill*: two groups of TorchTitan's own debug model; a rank is killed, and its group is forked from a warm process;
2. *compiled*: two groups of the same with `torch.compile`, bfloat16 and flex attention;
3. *flash*: two groups of the same with flash attention. A trace of one step names the kernels: it fails without flash's;
4. *step time*: 100 steps of one group, in turn with TorchTitan's own trainer without Everstep, three times each.

Each part has its own time limit, and all of it ends within eight minutes on one device: what is left by then fails. The
figures of a part are written as soon as it ends. `--dry-run` does the same on a processor, at a size for it.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fault_injection.sim.lane import commit
from supervisor.core.model.spec import AllocationSpec, DataSpec, GroupsSpec, PolicySpec, RunSpec, TitanSpec
from supervisor.wire.records import RunRecord, encode

RESULTS = Path(__file__).parent / "results" / "gpu.json"
STAND_INS = Path(__file__).parent / "torch_2_11"
WARM_UP_STEPS = 20
"""First steps of a run that do not count: they compile, allocate and wait for the other group."""
TURNS = 3
UP_LIMIT_S = 60.0
HALT_LOOK_S = 5.0
"""Seconds between looks at whether a run has halted: each is a command."""
PART_LIMIT_S = {"kill": 150.0, "compiled": 150.0, "flash": 120.0, "step_time": 45.0}
"""Most seconds of a part; of `step_time`, of each of its six runs."""
END_LIMIT_S = 75.0
"""Most seconds that the system takes to end: a drain of what still trains, and then its parts."""
WHOLE_LIMIT_S = 480.0 - END_LIMIT_S
"""Most seconds until the last part has ended; then the system ends."""


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    recipe: str
    compiled: str
    flash: str
    kill_steps: int
    compiled_steps: int
    steps: int


RECIPES = "benchmarks.gpu_recipes"
ON_A_DEVICE = Size(f"{RECIPES}:stock", f"{RECIPES}:compiled", f"{RECIPES}:flash", 200, 80, 100 + WARM_UP_STEPS)
DRY = Size(f"{RECIPES}:small", f"{RECIPES}:small", f"{RECIPES}:small_flash", 150, 60, 30 + WARM_UP_STEPS)


class Failed(Exception):
    """A part did not do what it should."""


@dataclass
class System:
    """`supervisor up`, and the commands that a user would give."""

    home: Path
    up: subprocess.Popen[bytes]
    environment: dict[str, str]
    ends: float
    """When the last part must have ended, on the monotonic clock."""
    names: list[str] = field(default_factory=list)

    def until(self, seconds: float) -> float:
        """Returns when something that may take this long must have ended."""
        return min(time.monotonic() + seconds, self.ends)

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "supervisor", *arguments, "--home", str(self.home)],
            capture_output=True, text=True, env=self.environment, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"supervisor {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def launch(self, spec: RunSpec) -> None:
        file = self.home / f"{spec.name}.toml"
        file.write_text(run_file(spec))
        self.command("launch", str(file))
        self.names.append(spec.name)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.command("status", "--json", "--run", name))
        return found

    def steps(self, name: str, group: int, generation: int | None = None) -> list[dict[str, Any]]:
        """Returns the committed steps of a group's first rank, of one generation or of all, by their time."""
        which = "*" if generation is None else generation
        lines: list[dict[str, Any]] = []
        for file in self.home.glob(f".supervisor/**/ranks/{name}.{group}.{which}.0/steps.jsonl"):
            lines += [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
        return sorted((one for one in lines if one.get("committed")), key=lambda one: float(one["t"]))

    def rank(self, name: str, group: int, generation: int) -> Path:
        (found,) = self.home.glob(f".supervisor/**/ranks/{name}.{group}.{generation}.0")
        return found

    def started(self, name: str, group: int, generation: int) -> dict[str, Any]:
        """Returns the first line of a rank's record: its pid, and whether it was forked from a warm process."""
        lines = (self.rank(name, group, generation) / "steps.jsonl").read_text().splitlines()
        first: dict[str, Any] = json.loads(lines[0])
        return first


def run_file(spec: RunSpec) -> str:
    """Returns the run file of a spec: the keys that these runs set."""
    titan, groups = spec.titan, spec.groups
    return f"""\
name = "{spec.name}"

[titan]
recipe = "{titan.recipe}"
steps = {titan.steps}
checkpoint_interval_steps = {titan.checkpoint_interval_steps}
digest_interval_steps = {titan.digest_interval_steps}

[titan.data]
source = "{titan.data.source}"

[groups]
count = {groups.count}

[allocation]
nodes = {spec.allocation.nodes}
spares = {spec.allocation.spares}

[policy]
start_timeout_s = {spec.policy.start_timeout_s}
"""


def spec(name: str, recipe: str, steps: int, groups: int, digests: int = 0) -> RunSpec:
    return RunSpec(
        name=name,
        titan=TitanSpec(
            recipe=recipe,
            steps=steps,
            checkpoint_interval_steps=10**6,
            digest_interval_steps=digests,
            data=DataSpec(source="python-stdlib"),
        ),
        groups=GroupsSpec(count=groups),
        allocation=AllocationSpec(nodes=groups, spares=0),
        policy=replace(PolicySpec(), start_timeout_s=300.0),
    )


def until(what: str, asked: Callable[[], Any], limit: float, system: System, name: str = "") -> Any:
    """Returns what `asked` gives as soon as that is true. Raises Failed after `limit` (a time.monotonic()), or once the
    run `name` has halted."""
    looked = time.monotonic()
    while not (answer := asked()):
        if system.up.poll() is not None:
            raise Failed(f"supervisor up ended with {system.up.returncode} before {what}")
        if time.monotonic() > limit:
            raise Failed(f"not in time: {what}")
        if name and time.monotonic() - looked > HALT_LOOK_S:
            looked = time.monotonic()
            if system.status(name)["phase"] == "halted":
                raise Failed(f"{name} halted: {system.command('incidents', '--run', name)}")
        time.sleep(0.05)
    return answer


@contextmanager
def running(home: Path, environment: dict[str, str], ends: float, *options: str) -> Iterator[System]:
    home.mkdir(parents=True)
    with (home / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "up", "--nodes", "2", "--home", str(home), *options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
        )  # fmt: skip
    system = System(home, up, environment, ends)
    try:
        until("a supervisor leads", lambda: "Now:" in (home / "up.log").read_text(), system.until(UP_LIMIT_S), system)
        yield system
    finally:
        up.send_signal(signal.SIGTERM)
        try:
            up.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            up.kill()


def joint(system: System, name: str) -> list[dict[str, Any]]:
    """The steps of group 0 that both groups took part in."""
    return [one for one in system.steps(name, 0) if one["participants"] == 2]


def finished(system: System, name: str, limit: float) -> None:
    """Waits until the run has finished. Raises Failed if it halts or the time is over."""
    until(f"{name} has finished", lambda: system.status(name)["phase"] == "finished", limit, system, name)


def step_s(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Returns median, and longest, seconds between committed steps after the first ones."""
    times = [float(one["t"]) for one in steps][WARM_UP_STEPS:]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    if not gaps:
        raise Failed(f"only {len(steps)} steps were committed")
    return {"median_s": round(statistics.median(gaps), 5), "longest_s": round(max(gaps), 3), "steps": len(gaps)}


def digests(system: System, name: str) -> dict[str, Any]:
    """Compares the digests that both groups wrote at the same steps."""
    told: dict[int, dict[int, str]] = {}
    for group in (0, 1):
        for file in system.home.glob(f".supervisor/**/ranks/{name}.{group}.*.0/steps.jsonl"):
            for line in map(json.loads, file.read_text().splitlines()):
                if line["event"] == "digest":
                    told.setdefault(line["step"], {})[group] = line["value"]
    both = {step: values for step, values in told.items() if len(values) == 2}
    return {"compared": len(both), "equal": sum(len(set(values.values())) == 1 for values in both.values())}


def kill(system: System, size: Size) -> dict[str, Any]:
    """Trains two groups, kills a rank in the middle, and says how long each group was without a joint step."""
    name, limit = "kill", system.until(PART_LIMIT_S["kill"])
    launched = time.time()
    system.launch(spec(name, size.recipe, size.kill_steps, 2, digests=20))
    until("a third of the steps is joint", lambda: len(joint(system, name)) > size.kill_steps // 3, limit, system, name)
    first = joint(system, name)[0]
    victim = system.started(name, 1, 1)
    killed = time.time()
    os.kill(victim["pid"], signal.SIGKILL)
    until("the killed group steps again", lambda: system.steps(name, 1, 2), limit, system, name)
    finished(system, name, limit)
    again = system.started(name, 1, 2)
    alone = next((one for one in system.steps(name, 0) if one["t"] > killed), None)
    together = next(one for one in joint(system, name) if one["start"] > killed)
    return {
        "steps": size.kill_steps,
        "first_joint_step_after_launch_s": round(first["t"] - launched, 2),
        "warm_start": bool(again["warm"]),
        "survivor_steps_again_s": round(alone["t"] - killed, 2) if alone is not None else None,
        "killed_group_trains_again_s": round(together["t"] - killed, 2),
        "digests": digests(system, name),
        "step": step_s([one for one in joint(system, name) if one["t"] < killed]),
    }


def compiled(system: System, size: Size) -> dict[str, Any]:
    """Trains two groups of the compiled config."""
    return two_groups(system, "compiled", size.compiled, size.compiled_steps)


def flash(system: System, size: Size) -> dict[str, Any]:
    """Trains two groups of the compiled config with flash attention, and names the kernels that attended."""
    figures = two_groups(system, "flash", size.flash, size.compiled_steps)
    return figures | {"kernels": flash_kernels(system.home / "flash")}


def flash_kernels(run_dir: Path) -> dict[str, int]:
    """Returns the flash attention kernels in the traces of a run, with how often each ran. Raises Failed unless both the
    forward and the backward pass have one: PyTorch would use another in silence."""
    found: Counter[str] = Counter()
    for file in run_dir.glob("titan/group-*/profiling/traces/**/*.json*"):
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for event in json.loads(text)["traceEvents"]:
            # a processor's kernels are operators
            if event.get("cat") in ("kernel", "cpu_op") and "flash" in event["name"].lower():
                found[event["name"][:120]] += 1
    backward = [name for name in found if "bwd" in name.lower() or "backward" in name.lower()]
    if not backward or len(backward) == len(found):
        raise Failed(f"the trace of the run shows no flash attention forward and backward: {dict(found)}")
    return dict(found)


def two_groups(system: System, name: str, recipe: str, count: int) -> dict[str, Any]:
    """Trains two groups to the end of that many steps."""
    limit = system.until(PART_LIMIT_S[name])
    launched = time.time()
    system.launch(spec(name, recipe, count, 2, digests=20))
    finished(system, name, limit)
    steps = joint(system, name)
    return {
        "recipe": recipe,
        "steps": count,
        "first_joint_step_after_launch_s": round(steps[0]["t"] - launched, 2),
        "digests": digests(system, name),
        "step": step_s(steps),
        "last_loss": steps[-1]["loss"],
    }


def step_time(system: System, size: Size) -> dict[str, Any]:
    """Times one group with us and the same trainer without us, in turn."""
    ours: list[dict[str, float]] = []
    plain: list[dict[str, float]] = []
    for turn in range(TURNS):
        named = spec(f"alone-{turn}", size.recipe, size.steps, 1)
        system.launch(named)
        finished(system, named.name, system.until(PART_LIMIT_S["step_time"]))
        ours.append(step_s(system.steps(named.name, 0)))
        plain.append(step_s(without_us(system, named)))
        print(f"turn {turn}: with {ours[-1]}, without {plain[-1]}", flush=True)
    ratios = [with_us["median_s"] / without["median_s"] for with_us, without in zip(ours, plain, strict=True)]
    return {"with": ours, "without": plain, "ratios": [round(r, 4) for r in ratios]}


def without_us(system: System, named: RunSpec) -> list[dict[str, Any]]:
    file, left_s = system.home / f"{named.name}.json", system.until(PART_LIMIT_S["step_time"]) - time.monotonic()
    file.write_bytes(encode(RunRecord(spec=named, run_dir=str(system.home), launched_unix_s=time.time())))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plain_titan", str(file)],
        capture_output=True, text=True, env=system.environment, timeout=max(left_s, 0.0), check=False,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"TorchTitan's own trainer ended with {done.returncode}: {done.stderr[-1500:]}")
    return [{"t": t} for t in json.loads(done.stdout)]


PARTS = {"kill": kill, "compiled": compiled, "flash": flash, "step_time": step_time}


def machine() -> dict[str, Any]:
    """Returns what this was measured on."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "python": platform.python_version()}
    for name in ("torch", "torchft", "torchtitan"):
        found[name] = importlib.metadata.version(name)
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found | {"device": asked.stdout.strip().rpartition("\n")[2] or "cpu"}


def main() -> int:
    """Does all parts; exits 0 if each did what it should."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on a processor, small")
    parser.add_argument("--cold", action="store_true", help="without warm processes")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be given again")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file for the figures")
    given = parser.parse_args()
    size, environment, whole_s = ON_A_DEVICE, dict(os.environ), WHOLE_LIMIT_S
    if given.dry_run:
        size, environment = DRY, environment | {"CUDA_VISIBLE_DEVICES": ""}
        PART_LIMIT_S.update(kill=600.0, compiled=600.0, flash=600.0, step_time=180.0)
        whole_s = 2400.0
    here = machine()
    if here["device"] == "cpu" and not given.dry_run:
        print("there is no CUDA device here: --dry-run does the same on a processor", file=sys.stderr)
        return 2
    results: dict[str, Any] = {
        "what": "two groups that share one device, and one group beside TorchTitan's own trainer: benchmarks/gpu.py",
        "command": "python -m benchmarks.gpu",
        "dry_run": given.dry_run,
        "machine": here,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    if here["torch"].startswith("2.11."):
        folders = filter(None, (str(STAND_INS), environment.get("PYTHONPATH")))
        environment["PYTHONPATH"] = os.pathsep.join(folders)
        results["stand_ins"] = "torch 2.11 lacks names that TorchTitan 0.3.0 imports: benchmarks/torch_2_11"
    wrong = 0
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="everstep-gpu-"))
    with running(folder / "runs", environment, began + whole_s, *["--cold"] * given.cold) as system:
        for name in given.part or PARTS:
            try:
                results[name] = PARTS[name](system, size)
            except (Failed, subprocess.TimeoutExpired, LookupError, ValueError) as error:
                results[name] = {"failed": f"{type(error).__name__}: {error}"[:3000], "logs": logs(system)}
                wrong += 1
            print(json.dumps({name: results[name]}), flush=True)
            results["wall_s"] = round(time.monotonic() - began, 1)
            given.results.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if wrong else 0


def logs(system: System) -> dict[str, str]:
    """Returns the ends of the ranks' output, for a part that failed."""
    files = sorted(system.home.glob(".supervisor/**/ranks/*/output.log"), key=lambda file: file.stat().st_mtime)
    return {file.parent.name: file.read_text(errors="replace")[-1500:] for file in files[-4:]}


if __name__ == "__main__":
    sys.exit(main())
