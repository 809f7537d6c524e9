"""Checkpoints on disk: the last resort, when no peer is left to heal from.

One group writes, all its ranks, to `<run_dir>/checkpoints/step-<step>.g<group>.gen<generation>/`. The state is copied
in memory between two steps, and a thread writes it. The marker `complete.json` comes last, so a folder without it is
torn. The path carries the generation, so a frozen writer that thaws harms no one. A writer decides itself when to purge
(ADR 15). It may once the gate has let it into a quorum that it asked for after its newest checkpoint was complete.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from supervisor.wire.checkpoints import MARKER, listed, mark_of, refuse_open
from supervisor.wire.records import CheckpointMark, TrainerLaunch, encode
from titan_actor import optimizer_settings, pickles
from titan_actor.control import Agreement

log = logging.getLogger(__name__)

FULL_BYTES = 1 << 20
"""Bytes below which a full disk is the reason, whatever torch calls the failure."""


class CheckpointLost(RuntimeError):
    """There should be a checkpoint to resume from, and none can be read."""


class CheckpointRefused(RuntimeError):
    """Another user may have written the checkpoint, or it holds what could run code; the text says what to do."""


def purge(run_dir: str, newest: CheckpointMark, kept: int) -> list[Path]:
    """Removes the checkpoints that the writer of `newest` may remove, and returns them.

    Of the complete ones up to `newest`, the newest `kept` stay, and `newest` itself always. Torn ones older than it go.
    """
    found = listed(run_dir)
    complete = [folder for step, folder, mark in found if mark is not None and step <= newest.step]
    stay = {Path(newest.path).name, *(folder.name for folder in complete[: max(1, kept)])}
    gone = [folder for folder in complete if folder.name not in stay]
    gone += [folder for step, folder, mark in found if mark is None and step < newest.step]
    for folder in gone:
        # the marker first: a half removed folder must not look complete
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return gone


def load_initial(trainer: Any, process_group: Any = None) -> str:
    """Loads the weights with which a new run begins: TorchTitan's, Hugging Face's, or those of another run's checkpoint.
    Returns their folder; empty: that of the tokenizer. Raises CheckpointLost, CheckpointRefused, and what TorchTitan
    raises."""
    import torch.distributed.checkpoint as dcp

    path = trainer.config.checkpoint.initial_load_path or ""
    # TorchTitan would look for the weights where its own checkpoints have them
    ours = mark_of(Path(path)) is not None
    state = {"model": _weights(trainer)} if ours else {}
    try:
        if ours:
            dcp.load(state, storage_reader=dcp.FileSystemReader(path), process_group=process_group)
        else:
            trainer.checkpointer.load()
    except dcp.api.CheckpointException as error:
        _raise_refused(error, Path(path))
        raise CheckpointLost(f"the weights in {path} cannot be read: {_reason(error, Path(path))}") from None
    if not ours:
        return path
    for part in trainer.model_parts:
        part.load_state_dict(state["model"], strict=False)
    return path


def _weights(trainer: Any) -> dict[str, Any]:
    return {name: value for part in trainer.model_parts for name, value in part.state_dict().items()}


class Purge:
    """Decides when a writer may purge. Its newest checkpoint must be complete before it asks for the quorum of its
    newest commit: its successor then finds that checkpoint on disk. A frozen writer that thaws gets into no quorum, and
    purges nothing."""

    def __init__(self) -> None:
        self._seen: CheckpointMark | None = None
        self._done: CheckpointMark | None = None

    def committed(self, complete: CheckpointMark | None) -> CheckpointMark | None:
        """Returns the checkpoint up to which the writer may purge now; None: nothing. Call it after each commit, before
        asking for the next quorum. `complete`: the writer's newest checkpoint."""
        proved, self._seen = complete is self._seen, complete
        if complete is None or not proved or complete is self._done:
            return None
        self._done = complete
        return complete


class Checkpoints:
    """Saves and loads the state of one group."""

    def __init__(
        self,
        launch: TrainerLaunch,
        trainer: Any,
        agreement: Agreement,
        done: Callable[[CheckpointMark | None, str, float], None],
    ) -> None:
        """`done(mark, error, started_unix_s)` is called in another thread after each save, on every rank."""
        import torch.distributed as dist

        self._launch, self._trainer, self._agreement, self._done = launch, trainer, agreement, done
        self.settings = optimizer_settings.of(trainer)
        self._place: dict[str, Any] = {}
        self._manager = trainer.ft_manager.manager
        # a separate process group: the writing thread's collectives must not mix with the training's
        self._group = dist.new_group(backend="gloo")
        self._running: Future[Any] | None = None
        self._finished = threading.Event()
        self._finished.set()
        self.saved_step = -1
        self.complete: CheckpointMark | None = None
        """Newest checkpoint that this process has written. Set by the writing thread."""

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written."""
        return not self._finished.is_set()

    def save(self, step: int) -> None:
        """Copies the state and starts to write it. A failure is reported to `done`, never raised."""
        import torch.distributed.checkpoint as dcp

        started = time.time()
        launch = self._launch
        folder = Path(launch.run_dir) / "checkpoints" / f"step-{step}.g{launch.group}.gen{launch.generation}"
        mark = CheckpointMark(step=step, path=str(folder), group=launch.group, generation=launch.generation)
        self.saved_step = step
        self._place = self._trainer.cursor.state()
        self._finished.clear()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            writer = dcp.FileSystemWriter(folder, thread_count=1)
            self._running = dcp.async_save(self._state(), storage_writer=writer, process_group=self._group)
        except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
            self._end(mark, error, started)
            return
        self._running.add_done_callback(lambda future: self._end(mark, future.exception(), started))

    def wait(self) -> None:
        """Waits until the running save has ended, well or not."""
        self._finished.wait()

    def load_initial(self) -> str:
        """Loads the weights with which the run begins; returns their folder."""
        return load_initial(self._trainer, self._group)

    def load(self) -> int | None:
        """Loads the launch's checkpoint, else the newest complete one; returns its step, None if there never was one.

        Sets the manager's step too. Raises CheckpointLost when there should be one and none can be read, and
        CheckpointRefused.
        """
        unread = ""
        for mark in self._agreement.choose(self._candidates()):
            if why := refuse_open(self._launch.run_dir, mark):
                raise CheckpointRefused(why)
            error = self._load(mark)
            if error is None:
                return int(mark.step)
            log.warning("checkpoint %s cannot be read: %s", mark.path, error)
            unread = unread or f": {Path(mark.path).name}: {_reason(error, Path(mark.path))}"
        if self._launch.checkpoint is None and not self._agreement.choose(self._candidates()):
            return None
        raise CheckpointLost(f"no checkpoint can be read, the newest should be {self._launch.checkpoint}{unread}")

    def hold_settings(self, before: optimizer_settings.Settings) -> None:
        """Holds a state that was kept in memory to the run file, as `load` does with a checkpoint. `before`: the settings
        of the program that kept it."""
        for changed in optimizer_settings.set_again(self._trainer, before, self.settings):
            log.info("%s", changed)
        optimizer_settings.set_rates(self._trainer)

    def _candidates(self) -> list[CheckpointMark]:
        wanted = self._launch.checkpoint
        found = [mark for _, _, mark in listed(self._launch.run_dir) if mark is not None]
        if wanted is None:
            return found
        if mark_of(Path(wanted.path)) is None:
            log.warning("checkpoint %s is torn or gone: falling back to the newest complete one", wanted.path)
            return found
        return [wanted, *(mark for mark in found if mark.path != wanted.path and mark.step <= wanted.step)]

    def _load(self, mark: CheckpointMark) -> Exception | None:
        import torch.distributed.checkpoint as dcp

        state, place = self._state(), self._place_in(Path(mark.path))
        if isinstance(place, Exception):
            return place
        try:
            dcp.load(state, storage_reader=dcp.FileSystemReader(mark.path), process_group=self._group)
        except (OSError, RuntimeError, ValueError, dcp.api.CheckpointException) as error:
            _raise_refused(error, Path(mark.path))
            return error
        trainer = self._trainer
        for part in trainer.model_parts:
            part.load_state_dict(state["model"], strict=False)
        _live_optimizers().load_state_dict(trainer.optimizers, state["optimizer"])
        for changed in optimizer_settings.restore(trainer, Path(mark.path), self.settings):
            log.info("%s", changed)
        trainer.cursor.resume(place, mark.path)
        trainer.lr_schedulers.load_state_dict(state["lr_schedulers"])
        optimizer_settings.set_rates(trainer)
        trainer.ntokens_seen = state["train"]["ntokens_seen"]
        self._manager.load_state_dict({name: state["train"][name] for name in ("step", "batches_committed")})
        return None

    def _place_in(self, folder: Path) -> dict[str, Any] | Exception:
        """Returns the place in the data that a checkpoint has, or why it cannot be read: the same on all ranks."""
        try:
            found: dict[str, Any] | Exception = self._trainer.cursor.read(folder) if self._launch.rank == 0 else {}
        except (OSError, ValueError) as error:
            found = error
        chosen: dict[str, Any] | Exception = self._agreement.choose(found)
        return chosen

    def _state(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "model": _weights(trainer),
            # not the TorchFT container's own: that is cached at start (findings, 6)
            "optimizer": _live_optimizers().state_dict(trainer.optimizers),
            "lr_schedulers": trainer.lr_schedulers.state_dict(),
            "train": {**self._manager.state_dict(), "ntokens_seen": trainer.ntokens_seen},
        }

    def _end(self, mark: CheckpointMark, error: BaseException | None, started: float) -> None:
        folder = Path(mark.path)
        text = ""
        if error is None and self._launch.rank == 0:
            try:
                optimizer_settings.write(folder, self.settings)
                self._trainer.cursor.write(folder, self._place)
                write_marker(folder, mark)
            except OSError as late:
                error = late
        if error is not None:
            text = f"checkpoint of step {mark.step} failed: {_reason(error, folder)}"
            log.warning("%s; training goes on", text)
            if self._launch.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            self.complete = mark
        try:
            self._done(None if error is not None else mark, text, started)
        finally:
            self._finished.set()


def _raise_refused(error: BaseException, folder: Path) -> None:
    """Raises CheckpointRefused if a rank refused what it read: an older checkpoint must not hide that."""
    for one, _ in getattr(error, "failures", {}).values():
        if isinstance(one, pickles.Refused):
            raise CheckpointRefused(f"checkpoint {folder} is not read: {one}") from None


def _live_optimizers() -> Any:
    from torchtitan.components.optimizer import OptimizersContainer

    return OptimizersContainer


def write_marker(folder: Path, mark: CheckpointMark) -> None:
    """Marks a checkpoint's folder as complete, on disk when it returns. Raises OSError."""
    scratch = folder / f"{MARKER}.tmp"
    with open(scratch, "wb") as file:
        file.write(encode(mark))
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, folder / MARKER)
    for synced in (folder, folder.parent):
        descriptor = os.open(synced, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(error: BaseException, folder: Path) -> str:
    """Returns what failed, in a line: DCP wraps errors in a page of traceback, and torch.save hides a full disk."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    try:
        free = shutil.disk_usage(folder.parent).free
    except OSError:
        free = FULL_BYTES
    if free < FULL_BYTES:
        return f"{os.strerror(errno.ENOSPC)} ({free} bytes left in {folder.parent})"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
