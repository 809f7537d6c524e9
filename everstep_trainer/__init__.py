"""Connects a training script of the user's own with its supervisor: docs/OWN_SCRIPT.md has an example.

    with everstep_trainer.start() as rank:
        manager = rank.manager(state_dict, load_state_dict)
        rank.admit()
        while rank.goes_on(step := manager.current_step()):
            ...
            rank.step(step + 1, committed=committed, loss=loss)

The block ends the process. Exit codes: 0 finished or drained, 1 failed (error.json says why), 75 PEERS_GONE, 78
MISCONFIGURED, 143 TERMINATED; 2 from `start` where no supervisor has started the script.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from supervisor.wire import checkpoints
from supervisor.wire.activity import Activity
from supervisor.wire.environment import LAUNCH
from supervisor.wire.records import MISCONFIGURED, CheckpointMark, Progress, RecordError, TrainerLaunch, decode
from titan_actor import address, admission, process, torchft_names
from titan_actor.checkpoint import write_marker
from titan_actor.control import NEVER, Agreement, Wishes
from titan_actor.quorum import Quorum
from titan_actor.quorum import manager as make_manager


class Misconfigured(Exception):
    """The script or its settings are wrong on every machine: the run stops with this error instead of trying others."""


def start(path: str = "") -> Rank:
    """Reads what this rank is, and serves its node's requests from here on. `path`: its launch.json, if not the one that
    the supervisor names in SUPERVISOR_LAUNCH. Exits 2 if there is none."""
    path = path or os.environ.get(LAUNCH, "")
    try:
        if not path:
            raise OSError(f"{LAUNCH} is not set")
        launch = decode(Path(path).read_bytes(), TrainerLaunch)
    except (OSError, RecordError) as error:
        print(
            f"everstep_trainer: {sys.argv[0]} was not started by a supervisor: {error}. Name it in [trainer] command of a "
            "run file, and launch that",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    return Rank(launch)


class Rank:
    """One rank of a replica group. `launch` has its run, group, rank, world size, addresses, folders, steps and seed."""

    def __init__(self, launch: TrainerLaunch) -> None:
        self.launch, self._process = launch, process.RankProcess(launch)
        self._report, self._ledger, self.seconds = self._process.report, self._process.ledger, self._process.seconds
        address.use(launch.node_address)
        self._agreement = Agreement(rank=0, world_size=1)  # until `admit`: the ranks have a process group then
        self._wishes = Wishes(writer=launch.writer)
        self._manager: Any = None
        self._quorum: Quorum | None = None

    # --- before the first step ---

    @property
    def resumes_from(self) -> Path | None:
        """Folder of the checkpoint to load; None: begin at step 0, or heal from the others."""
        launch = self.launch
        return Path(launch.checkpoint.path) if launch.resume == "disk" and launch.checkpoint is not None else None

    def manager(self, state_dict: Callable[[], Any], load_state_dict: Callable[[Any], None], **options: Any) -> Any:
        """Returns TorchFT's Manager of this rank, with the run file's timeouts, TorchFT's mends and our reports.
        `options` go to torchft.Manager; `pg` is a ProcessGroupGloo unless given."""

        def load(state: Any) -> None:
            with self._process.activity.during("heal"):
                load_state_dict(state)

        self._manager = made = make_manager(self.launch, state_dict, load, **options)
        self._quorum = Quorum(made, self._process)
        self._process.commands.abort = self._quorum.abort
        return made

    def admit(self, replica_id: str = "") -> None:
        """Reports that this rank is built, and waits until the gate lets its group into the quorum. Call it after all
        that is slow. `replica_id`: TorchFT's id of the group, where the Manager is not that of `manager`."""
        if self._manager is not None:
            replica_id = torchft_names.replica_id(self._manager)
        self._agreement = Agreement(self.launch.rank, self.launch.world_size)
        self._agreement.any(False)  # all ranks are built
        admission.admit(self._process, replica_id)

    # --- each step ---

    @property
    def reported(self) -> Progress:
        """The newest report of this rank, which is all that the supervisor knows of it."""
        return self._report.progress

    def phase(self, phase: str) -> None:
        """Reports a phase, as in supervisor.wire.records.Progress."""
        self._report.phase(phase)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Tells the node's agent what this rank does inside the block: "data", "evaluate", "checkpoint" and the others of
        supervisor.wire.activity. It bounds these apart from ordinary steps."""
        part = self.seconds.part(activity) if activity in ("data", "commit", "heal") else nullcontext()
        with self.seconds.waiting() if activity == "quorum" else part, self._process.activity.during(activity):
            yield

    def digest(self, step: int, value: str) -> None:
        """Reports a hash of this rank's state after a committed step: the history's checkers compare the groups'."""
        self._process.digest(step, value)

    def step(self, step: int, committed: bool = True, loss: float | None = None, **more: Any) -> None:
        """Reports an attempt at a step: `step` is the number of committed ones so far, `loss` the mean over all groups.
        `more` goes into its line of steps.jsonl; quorum_id, participants and healed also to the supervisor. Takes in what
        the supervisor wishes: all ranks of the group obey it at this step."""
        self._wishes = self._agreement.on(self._process.control.take())
        manager, quorum = self._manager, self._quorum
        if manager is not None and quorum is not None:
            mine = {"participants": manager.num_participants(), "participating_rank": manager.participating_rank()}
            more = {**mine, "quorum_id": quorum.id, "healed": quorum.take_healed(), **more}
        took = self._ledger.step(self.seconds.total(), step=step, committed=committed, loss=loss, **more)
        self._report.attempt(
            took,
            self.seconds,
            committed=committed,
            loss=loss,
            healed=bool(more.get("healed")),
            phase="draining" if self._wishes.stop_at < NEVER else "step",
            step=step,
            seconds=self._ledger.seconds if self.launch.rank == 0 else {},
            quorum_id=more.get("quorum_id", -1),
            participants=more.get("participants", 0),
        )
        self._wishes = self._process.wait(self._agreement, self._wishes)
        self.seconds.begin()

    def goes_on(self, step: int) -> bool:
        """Returns false once `step` committed steps are enough: those of the run file, or a drain's. All ranks of the
        group get the same answer."""
        return step < min(self.launch.titan.steps, self._wishes.stop_at)

    def checkpoint_due(self, step: int) -> bool:
        """Returns true if this group writes the checkpoints, and one is due after this step: at the interval, and at the
        end, unless SIGTERM leaves no time for it. Ask on every rank."""
        due = step % self.launch.titan.checkpoint_interval_steps == 0
        if due or not self._wishes.writer or self.goes_on(step):
            return due and self._wishes.writer
        return not self._agreement.any(self._process.control.in_haste)

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """Yields the folder of a checkpoint, which is complete once rank 0 has left the block."""
        launch, started = self.launch, time.time()
        mark = CheckpointMark(step=step, path="", group=launch.group, generation=launch.generation)
        folder = checkpoints.folder_of(launch.run_dir) / checkpoints.name_of(mark)
        folder.mkdir(parents=True, exist_ok=True)
        with self.during("checkpoint"):
            yield folder
        self._ledger.note("checkpoint_end", start=started, complete=True, error="", path=str(folder))
        if launch.rank == 0:
            self.checkpoint_written(replace(mark, path=str(folder)))

    def checkpoint_written(self, mark: CheckpointMark) -> None:
        """Marks a checkpoint's folder as complete, and reports it. Raises ValueError for a folder that is not the one of
        `checkpoint`: resumed ranks look there alone."""
        folder = checkpoints.folder_of(self.launch.run_dir) / checkpoints.name_of(mark)
        if Path(mark.path) != folder:
            raise ValueError(f"the checkpoint is in {mark.path}: write it to {folder}, where resumed ranks look for it")
        write_marker(Path(mark.path), mark)
        self._report.update(checkpoint=mark)

    # --- the end ---

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> NoReturn:
        """Ends the process with the exit code by which the supervisor knows how. It does not wait for native threads, which
        may hang on a lost peer."""
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            process.leave(error.code)
        error = None if isinstance(error, SystemExit) and error.code is None else error
        if error is None and self._manager is not None:
            self._manager.shutdown(wait=False)
        process.leave(self._process.ended(error, MISCONFIGURED if isinstance(error, Misconfigured) else 1))
