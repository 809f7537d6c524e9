"""A small run as the files it leaves: two groups, a restart on the same node, a move to another, a clean end.

Times are seconds since an arbitrary instant. All lines are kept in lists, so that a test can plant a violation before
they are written and read.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from fault_injection.checkers import consistency
from fault_injection.checkers.history_file import load
from fault_injection.faults.acts import Injected
from supervisor.shell.history.files import History, read

RUN = "run"

KILL = Injected(name="kill_trainer", group=1, node="n2", unix_s=10.5, evidence="SIGKILL to pid 1")
LOSE = Injected(name="lose_node", group=1, node="n2", unix_s=18.25, evidence="link of n2 is down")


class Files:
    """journal.jsonl, the shims' histories, and the steps.jsonl of every generation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal: list[dict[str, Any]] = []
        self.shims: dict[str, list[dict[str, Any]]] = {}
        self.steps: dict[tuple[str, int, int], list[dict[str, Any]]] = {}

    # --- the journal ---

    def intent(
        self,
        t: float,
        number: int,
        groups: dict[int, int],
        actions: list[dict[str, Any]] | None = None,
        incidents: list[dict[str, Any]] | None = None,
        epoch: int = 1,
    ) -> None:
        self.journal.append(
            {
                "t": t,
                "entry": "intent",
                "epoch": epoch,
                "decision": number,
                "actions": actions or [],
                "incidents": incidents or [],
                "groups": {str(g): {"generation": n, "node": "", "phase": "running"} for g, n in groups.items()},
            }
        )

    def outcome(self, t: float, number: int, epoch: int = 1, refused: str = "") -> None:
        body = {"revision": None if refused else round(10 * t), "refused": refused}
        self.journal.append({"t": t, "entry": "outcome", "epoch": epoch, "decision": number, **body})

    def decide(self, t: float, number: int, groups: dict[int, int], *args: Any, epoch: int = 1) -> None:
        """Adds an intent, committed a tenth of a second later."""
        self.intent(t, number, groups, *args, epoch=epoch)
        self.outcome(round(t + 0.1, 3), number, epoch)

    def of_decision(self, number: int, entry: str) -> dict[str, Any]:
        (line,) = [x for x in self.journal if x.get("decision") == number and x["entry"] == entry]
        return line

    # --- a node ---

    def shim(self, t: float, event: str, node: str, group: int, generation: int, pid: int = 0, **about: Any) -> None:
        name = f"{RUN}.{group}.{generation}.0"
        pid = pid or 100 * group + generation
        line = {"t": t, "event": event, "name": name, "pid": pid, "start_ticks": pid, "generation": generation}
        self.shims.setdefault(node, []).append(line | about)

    def of_shim(self, node: str, event: str, group: int, generation: int) -> dict[str, Any]:
        name = f"{RUN}.{group}.{generation}.0"
        (line,) = [x for x in self.shims[node] if (x.get("name"), x["event"]) == (name, event)]
        return line

    def leftover_killed(self, t: float) -> None:
        """Ends the process of generation 2 at that time, and so starts its node's next shim."""
        self.of_shim("n2", "leftover_killed", 1, 2)["t"] = t
        self.shims["n2"][-1]["t"] = t + 0.005

    def nobody_saw_it_end(self) -> None:
        """Loses generation 2 with its node, where no shim begins again."""
        del self.shims["n2"][-2:]

    # --- written and read ---

    def write(self) -> None:
        _write(self.folder / RUN / "journal.jsonl", self.journal)
        for node, lines in self.shims.items():
            _write(self.shim_file(node), lines)
        for (node, group, generation), lines in self.steps.items():
            _write(self.steps_file(node, group, generation), [of_quorum(group, line) for line in lines])

    def journal_file(self) -> Path:
        return self.folder / RUN / "journal.jsonl"

    def shim_file(self, node: str) -> Path:
        return self.folder / "system" / "nodes" / node / "shim.jsonl"

    def steps_file(self, node: str, group: int, generation: int) -> Path:
        return self.folder / "system" / "nodes" / node / "ranks" / f"{RUN}.{group}.{generation}.0" / "steps.jsonl"

    def load(self) -> History:
        """Reads the files on disk."""
        return read(RUN, self.folder / RUN, self.folder / "system")

    def history(self) -> History:
        self.write()
        return self.load()

    def answers(self) -> dict[str, str]:
        """checker -> answer."""
        return answers(self.history())


def answers(history: History) -> dict[str, str]:
    return {v.checker: v.answer for v in consistency.check(history)}


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def of_quorum(group: int, body: dict[str, Any]) -> dict[str, Any]:
    """A step line with the quorum of its time, which changes when a group is lost or back, unless it names another."""
    if body.get("event") != "step" or "start" not in body:
        return body
    middle = (body["start"] + body["t"]) / 2
    quorum = 1 + sum(middle > change for change in (10.0, 13.4, 18.0, 21.0, 30.0))
    both = quorum in (1, 3, 5, 6)
    return {
        "quorum_id": quorum,
        "participants": 2 if both else 1,
        "participating_rank": group if both else 0,
        **body,
    }


def recorded(folder: Path) -> History:
    """The history of a real run: `recorded_run`."""
    path = folder / "history.jsonl"
    path.write_bytes(gzip.decompress((Path(__file__).parent / "recorded_run" / "history.jsonl.gz").read_bytes()))
    history = load(path)
    assert not history.unreadable
    return history


# --- lines ---


def place(group: int, generation: int, node: str, verb: str = "place") -> dict[str, Any]:
    return {
        "verb": verb,
        "key": f"start:{group}:{generation}",
        "group": group,
        "generation": generation,
        "node": node,
        "reason": "r",
    }


def incident(id: str, kind: str, group: int, before: int, after: int, state: str, **about: Any) -> dict[str, Any]:
    return {
        "id": id,
        "kind": kind,
        "group": group,
        "node": "n2",
        "rung": 1,
        "generation_before": before,
        "generation_after": after,
        "reason": "because",
        "state": state,
        **about,
    }


def line(event: str, start: float, t: float, **about: Any) -> dict[str, Any]:
    return {"event": event, "start": start, "t": t, "overlaps": False, **about}


def step(start: float, t: float, number: int, committed: bool = True, **about: Any) -> dict[str, Any]:
    body = {"step": number, "committed": committed, "samples": 2, "loss": 9 - 0.25 * number}
    return line("step", start, t, **body, **about)


def note(event: str, t: float, **about: Any) -> dict[str, Any]:
    return {"event": event, "start": t, "t": t, "overlaps": True, **about}


def digest(t: float, number: int, value: str) -> dict[str, Any]:
    return line("digest", t, t, step=number, value=value)


def seconds(first: float, number: int, count: int) -> list[dict[str, Any]]:
    """`count` committed steps of a second each."""
    return [step(first + i, first + i + 1, number + i) for i in range(count)]


# --- the stories ---


def resumed(folder: Path) -> Files:
    """One group trains from 5 s on and ends by an error at 10.6 s, for which the run is halted at 11 s. A person
    resumes it eight hours later, at 28811 s. It is placed at 28812 s and steps from 28814 s to 28864 s, when the run
    has finished."""
    f = Files(folder)
    f.decide(1.0, 1, {0: 1}, [place(0, 1, "n1")])
    f.decide(11.0, 2, {0: 1}, [], [incident("i1", "error", 0, 1, 1, "halted", rung=4)])
    f.decide(28811.0, 3, {0: 2}, [{"verb": "resume", "key": "resume:1", "reason": "a person resumes it"}])
    f.decide(28812.0, 4, {0: 2}, [place(0, 2, "n1")])
    f.decide(28864.0, 5, {0: 2})
    for number, phase in enumerate(("running", "halted", "resuming", "running", "finished"), 1):
        about = f.of_decision(number, "intent")
        about["phase"], about["groups"]["0"]["node"] = phase, "n1"
    f.shim(2.0, "spawned", "n1", 0, 1)
    f.shim(10.6, "exited", "n1", 0, 1, exit_code=1, signal=None)
    f.shim(28813.0, "spawned", "n1", 0, 2)
    f.steps["n1", 0, 1] = [line("start", 2.0, 5.0), *seconds(5.0, 1, 5), line("failed", 10.0, 10.5)]
    f.steps["n1", 0, 2] = [line("start", 28813.0, 28814.0), *seconds(28814.0, 6, 50)]
    return f


def story(folder: Path) -> Files:
    """Both groups start at 2 s. Group 1 is killed at 10.5 s and restarted on n2, which is lost at 18.25 s; it moves to
    n3. Both finish at 23 s with step 17."""
    f = Files(folder)
    f.journal.append({"t": 0.5, "entry": "event", "event": "term", "epoch": 1})
    f.decide(1.0, 1, {0: 1, 1: 1}, [place(0, 1, "n1"), place(1, 1, "n2")])
    i1 = ("i1", "crash", 1, 1, 2)
    f.decide(10.8, 2, {0: 1, 1: 2}, [place(1, 2, "n2", "start")], [incident(*i1, "acting")])
    f.decide(14.2, 3, {0: 1, 1: 2}, [], [incident(*i1, "recovered", acted=11.0, recovered=14.0)])
    i2 = ("i2", "node_lost", 1, 2, 3)
    f.decide(
        18.4, 4, {0: 1, 1: 3}, [{"verb": "fence", "key": "fence:1:3", "reason": "r"}], [incident(*i2, "acting", rung=2)]
    )
    f.decide(19.0, 5, {0: 1, 1: 3}, [place(1, 3, "n3")])
    f.decide(22.2, 6, {0: 1, 1: 3}, [], [incident(*i2, "recovered", rung=2, acted=19.5, recovered=22.0)])
    f.decide(22.9, 7, {0: 1, 1: 3}, [{"verb": "stop", "key": "stop", "reason": "r"}])

    for node in ("n1", "n2", "n3"):
        f.shims[node] = [
            {"t": 0.1, "event": "shim_started", "pid": 1, "allocation": f"a-{node}"},
            {"t": 0.2, "event": "spawned", "name": "agent", "pid": 2, "start_ticks": 2, "generation": None},
        ]
    f.shim(2.0, "spawned", "n1", 0, 1)
    f.shim(2.0, "spawned", "n2", 1, 1)
    f.shim(10.6, "exited", "n2", 1, 1, exit_code=None, signal=9)
    f.shim(11.0, "spawned", "n2", 1, 2)
    f.shim(18.375, "leftover_killed", "n2", 1, 2)
    f.shims["n2"].append({"t": 18.38, "event": "shim_started", "pid": 3, "allocation": "a-n2"})
    f.shim(19.5, "spawned", "n3", 1, 3)
    f.shim(23.2, "exited", "n3", 1, 3, exit_code=0, signal=None)
    f.shim(23.2, "exited", "n1", 0, 1, exit_code=0, signal=None)

    begin = [line("start", 2.0, 3.0), line("built", 3.0, 4.0), line("admitted", 4.0, 5.0), *seconds(5.0, 1, 5)]
    f.steps["n1", 0, 1] = [
        *begin,
        step(10.0, 11.0, 5, committed=False),
        step(11.0, 12.0, 6),
        step(12.0, 13.0, 7),
        step(13.0, 13.5, 8),
        step(13.5, 14.0, 9),
        *seconds(14.0, 10, 4),
        digest(15.0, 10, "a"),
        step(18.0, 20.0, 14),
        *seconds(20.0, 15, 3),
        digest(23.0, 17, "b"),
        line("finished", 23.0, 23.1),
    ]
    f.steps["n2", 1, 1] = [*(dict(x) for x in begin), note("heal", 5.5)]
    f.steps["n2", 1, 2] = [
        line("start", 11.0, 12.0),
        line("admitted", 12.0, 13.0),
        *seconds(13.0, 9, 5),
        digest(15.0, 10, "a"),
    ]
    f.steps["n3", 1, 3] = [
        line("start", 19.5, 20.5),
        line("admitted", 20.5, 21.0),
        *seconds(21.0, 16, 2),
        digest(23.0, 17, "b"),
        line("finished", 23.0, 23.1),
    ]
    return f
