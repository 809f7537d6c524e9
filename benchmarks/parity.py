"""Compares a run that is broken all the time with the same run without faults: loss by step, final parameters, samples.

`python -m benchmarks.parity [--steps 300]` (`make parity`) trains llama3-debug-small on a token store, with a constant
batch of six rounds, and writes benchmarks/results/parity.json, and report.html with both curves into the runs' folder:

- `plain`: three groups, no fault;
- `other_order`: two groups, no fault. They have the same samples, and sum their gradients in another order, which bounds
  what any difference may be blamed on;
- `faults`: three groups, with PLAN: kills, lost nodes and allocations, failed commits, a stop of all and a resume from
  disk, and 3 -> 2 -> 3 groups.

Needs two cores, and about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.chaos import curves, own
from fault_injection.chaos.live import LiveRun
from fault_injection.chaos.schedule import Planned
from fault_injection.faults.catalogue import FAULTS
from fault_injection.sim.lane import commit
from fault_injection.testbed.corpus import build_store
from fault_injection.testbed.waiting import eventually
from supervisor.client import Run, connect
from supervisor.core.model.spec import AllocationSpec, DataSpec, GroupsSpec, RunSpec, TitanSpec
from supervisor.ports.errors import PortError
from supervisor.shell.history import files
from supervisor.shell.history.samples import Audit, audit
from supervisor.wire.checkpoints import listed

RESULTS = Path(__file__).parent / "results" / "parity.json"

GROUPS, LOCAL, ROUNDS, SEQ_LEN = 3, 2, 6, 192
"""Rounds of a whole step divide by one, two and three groups."""

PLAN = (
    ("sigkill", 0), ("group_aborted", 1), ("sigabrt", 2), ("node_killed", 1), ("stop_resume", 0), ("sigkill", 1),
    ("scale", 2), ("scale", 3), ("allocation_gone", 0), ("group_aborted", 2), ("sigkill", 2), ("node_killed", 2),
    ("supervisor_killed", 0), ("sigsegv", 0),
)  # fmt: skip
"""Name and group of each, or the number of groups. One comes when the one before is over."""

FIRST, EVERY = 8, 12
"""Steps at which the first fault comes, and between two at least."""

LOSS_REL, FIRST_STEPS = 1e-4, 100
"""Greatest relative difference of the loss in the first steps."""

WELL_S = 240.0
"""Seconds in which all groups train again, on a machine that others use too."""


DIFFERENCES = {
    "loss_rel_max_first_100": f"greatest of the loss in the first {FIRST_STEPS} steps",
    "loss_rel_max": "greatest of the loss",
    "parameters_rel": "of all parameters after the last step, by norm",
}
"""Keys of the result, and what they are."""


@dataclass(frozen=True)
class Made:
    """A fault, or what else was done to a run."""

    step: int
    name: str
    number: int
    """Its group, or the number of groups."""


@dataclass(frozen=True)
class Trained:
    """One run, after its end."""

    losses: dict[int, float]
    parameters: dict[str, Any]
    samples: Audit
    seconds: float
    faults: tuple[Made, ...] = ()


def spec(name: str, store: Path, steps: int, groups: int) -> RunSpec:
    """Returns a run of the small model on a token store."""
    overrides = {"training.global_batch_size": ROUNDS * LOCAL, "training.seq_len": SEQ_LEN}
    titan = TitanSpec(
        recipe="llama3-debug-small",
        steps=steps,
        data=DataSpec(source="tokens", path=str(store)),
        checkpoint_interval_steps=25,
        overrides={**overrides, "training.local_batch_size": LOCAL},
    )
    return replace(
        own.spec(name),
        titan=titan,
        groups=GroupsSpec(count=groups, min_groups=1),
        allocation=AllocationSpec(nodes=groups, spares=1),
    )


class Driver:
    """Breaks a run by PLAN, and sees it to its end."""

    def __init__(self, live: LiveRun, run: Run, say: Callable[[str], None]) -> None:
        self._live, self._run, self._say = live, run, say
        self._groups = len(run.status().groups)
        self.done: list[Made] = []

    def break_it(self) -> None:
        """Makes the faults one after another, while there are steps left."""
        at = FIRST
        for name, number in PLAN:
            step = self._well_at(at)
            self._say(f"step {step}: {name} {number}")
            self._make(name, number)
            self.done.append(Made(step, name, number))
            at = step + EVERY

    def _well_at(self, at: int) -> int:
        """Waits until all groups train together at that step or later, and returns the step."""
        self._wait(lambda: self._well() and self._run.status().step >= at, f"step {at} of all groups")
        return self._run.status().step

    def finish(self, within_s: float) -> None:
        """Waits until all steps are trained."""
        self._wait(lambda: self._run.status().phase == "finished", "the run's end", within_s)

    def _make(self, name: str, number: int) -> None:
        if name == "scale":
            self._run.scale(groups=number)
            self._groups = number
        elif name == "stop_resume":
            self._run.stop()
            self._wait(lambda: self._run.status().phase == "stopped", "all have stopped")
            self._run.resume(because="the plan says so")
        else:
            fault, planned = FAULTS[name], Planned(number=0, name=name, at_step=1, group=number, rank=0)
            assert fault.inject is not None
            before = self._generations()
            with ExitStack() as after:
                self._say("  " + fault.inject(self._live.scene, self._live.target(planned, fault), after))
            if fault.kinds:
                self._wait(lambda: self._generations() != before, "a new generation")

    def _generations(self) -> list[int]:
        return [group.generation for group in self._run.status().groups]

    def _well(self) -> bool:
        now = self._run.status()
        groups = [group for group in now.groups if group.phase == "running"]
        return len(groups) == self._groups and all(group.participants == self._groups for group in groups)

    def _wait(self, there: Callable[[], bool], what: str, within_s: float = WELL_S) -> None:
        def looked() -> bool:
            time.sleep(0.1)
            self._live.tend()
            try:
                return there()
            except PortError:
                return False

        eventually(looked, within_s, what)


def trained(home: Path, made: RunSpec, breaks: bool) -> Trained:
    """Trains a run in a system of its own, to its end."""
    began = time.time()
    with own.started(home, made, False, _say) as live:
        assert live.house is not None
        client = connect(etcd=live.house.etcds.endpoint, home=home)
        driver = Driver(live, client.run(made.name), _say)
        if breaks:
            driver.break_it()
        driver.finish(3600.0)
        seconds = time.time() - began
    history = files.read(made.name, Path(live.run_dir), live.system)
    lines = sorted((line for steps in history.steps for line in steps.committed()), key=lambda line: float(line["t"]))
    losses = {int(line["step"]): float(line["loss"]) for line in lines if line["loss"] is not None}
    samples = audit(history)
    assert samples is not None
    return Trained(losses, parameters(Path(live.run_dir), made.titan.steps), samples, seconds, tuple(driver.done))


def parameters(run_dir: Path, step: int) -> dict[str, Any]:
    """Returns the parameters of the checkpoint of a step, by name."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = next(mark.path for number, _, mark in listed(str(run_dir)) if mark is not None and number == step)
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        dcp_to_torch_save(folder, file.name)
        found: dict[str, Any] = torch.load(file.name, weights_only=False)
    flat = dict(_flat(found))
    return {name: value for name, value in flat.items() if torch.is_tensor(value) and value.is_floating_point()}


def _flat(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Returns the norm of the difference of all parameters, as a share of their norm."""
    names = [name for name in one if "optim" not in name and "lr" not in name]
    difference = sum(float((one[name].double() - other[name].double()).square().sum()) for name in names)
    whole = sum(float(one[name].double().square().sum()) for name in names)
    return float((difference / whole) ** 0.5)


def loss_apart(one: dict[int, float], other: dict[int, float], first: int, last: int) -> float:
    """Returns the greatest relative difference of the loss of the steps from first to last."""
    return max(abs(one[step] - other[step]) / abs(other[step]) for step in range(first, last + 1))


def compared(plain: Trained, other: Trained, broken: Trained, steps: int) -> dict[str, Any]:
    """Returns the result, with what is not as promised in `missed`."""
    found: dict[str, Any] = {
        "faults": len(broken.faults),
        "steps": steps,
        "loss_rel_max_first_100": loss_apart(broken.losses, plain.losses, 1, FIRST_STEPS),
        "parameters_rel": apart(broken.parameters, plain.parameters),
        "samples_twice": broken.samples.twice,
        "samples_never": broken.samples.never,
        "samples_once": broken.samples.once,
        "samples_unnoted": [each.sentence for each in broken.samples.unnoted],
        "samples_drawn_again": broken.samples.again,
        "order_alone": {
            "loss_rel_max_first_100": loss_apart(other.losses, plain.losses, 1, FIRST_STEPS),
            "loss_rel_max": loss_apart(other.losses, plain.losses, 1, steps),
            "parameters_rel": apart(other.parameters, plain.parameters),
        },
        "loss_rel_max": loss_apart(broken.losses, plain.losses, 1, steps),
        "plan": [asdict(made) for made in broken.faults],
        "seconds": {"plain": plain.seconds, "other_order": other.seconds, "faults": broken.seconds},
        "curves": [[step, plain.losses[step], broken.losses[step]] for step in range(1, steps + 1)],
    }
    missed = [] if found["loss_rel_max_first_100"] <= LOSS_REL else [f"loss within {LOSS_REL} in the first steps"]
    missed += (
        [] if found["parameters_rel"] <= found["order_alone"]["parameters_rel"] else ["parameters within the spread"]
    )
    missed += [] if not (broken.samples.wrong or broken.samples.unnoted) else ["each sample once"]
    return {**found, "missed": missed}


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def page(found: Mapping[str, Any]) -> str:
    """Returns a result as a page: one file that loads nothing and runs nothing."""
    plain, broken = ({int(row[0]): float(row[at]) for row in found["curves"]} for at in (1, 2))
    faults = [(made["step"], f"{number} {made['name']}") for number, made in enumerate(found["plan"], 1)]
    return curves.template("parity.html.j2", Path(__file__).parent).render(
        found=found,
        loss=curves.drawn(broken, plain, faults),
        apart=curves.apart(broken, plain, faults),
        differences=DIFFERENCES,
        allowed=LOSS_REL,
        first_steps=FIRST_STEPS,
    )


def main() -> int:
    """Runs all three, writes the result and returns the exit code: 1 if something is not as promised."""
    arguments = argparse.ArgumentParser(description="Loss parity of a run that is broken with one that is not.")
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--home", type=Path, default=Path("runs/parity"), help="folder of the runs; it is emptied")
    arguments.add_argument("--out", type=Path, default=RESULTS)
    given = arguments.parse_args()
    shutil.rmtree(given.home, ignore_errors=True)
    given.home.mkdir(parents=True)
    store = given.home.resolve() / "tokens"
    build_store(store)
    broken, plain, other = (
        trained(given.home, spec(name, store, given.steps, groups), breaks)
        for name, groups, breaks in (("faults", GROUPS, True), ("plain", GROUPS, False), ("other-order", 2, False))
    )
    found = compared(plain, other, broken, given.steps)
    about = {
        "commit": commit(),
        "machine": machine(),
        "spec": asdict(spec("faults", Path("tokens"), given.steps, GROUPS).titan),
    }
    given.out.write_text(json.dumps({**found, **about}, indent=1) + "\n")
    (given.home / "report.html").write_text(page({**found, **about}))
    _say(f"report: {given.home / 'report.html'}")
    print(json.dumps({name: value for name, value in found.items() if name not in ("curves", "plan")}, indent=1))
    return 1 if found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
