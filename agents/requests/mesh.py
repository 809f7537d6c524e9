"""Holds this node's part of a Monarch mesh: a worker, for as long as its asker wants it and no run has the node."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agents.agent.launch import OUTPUT
from agents.requests import command
from agents.shim import process
from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire import marks, monarch, programs
from supervisor.wire.address import free_port
from supervisor.wire.records import MISCONFIGURED
from supervisor.wire.version import missing

log = logging.getLogger(__name__)

FILES = "files"
"""The folder below `folder` for the key of the mesh that is there."""
READY = "ready"
"""The file to which a worker writes Monarch's release once it listens."""
LOOK_S = 0.2
LISTENS_WITHIN_S = 60.0
"""Seconds until a worker listens: it imports for 1 s, and for many on a machine that is busy."""

ADDRESS = "EVERSTEP_NODE_ADDRESS"
"""Environment variable of a worker and its processes: the node's address, at which ranks meet."""


class Seat:
    """The place for one mesh on a node, and for none while a run has the node. Threads may share it."""

    def __init__(self, address: str, run_here: Callable[[], str], changed: Callable[[None], None]) -> None:
        """`address`: the node's. `run_here`: names a run that has the node, or is about to. `changed` is called when
        `holder` has changed."""
        self.address = address
        self.run_here = run_here
        self.holder = ""
        """Owner of the mesh here; empty: there is none. While it is set the agent starts no rank."""
        self._changed = changed
        self._taking = threading.Lock()

    @contextlib.contextmanager
    def taken(self, by: str) -> Iterator[None]:
        """Keeps the node for a mesh. Raises CannotDo if it is not free."""
        with self._taking:
            if self.holder:
                raise CannotDo(f"{self.holder} has a mesh there: a node has one at most")
            # before the look: the agent learns of a run first, and looks here then
            self.holder = by
        try:
            if run := self.run_here():
                raise CannotDo(f"run {run} has the node")
            self._changed(None)
            yield
        finally:
            self.holder = ""
            self._changed(None)


def hold(seat: Seat, folder: Path, job: Job) -> Answer:
    """Yields {"address", "release"} once the worker listens, and then nothing until the asker has gone or a run has the
    node. `folder`: for the worker's log and its key. Raises CannotDo."""
    with seat.taken(job.request.by):
        mark = f"mesh.{job.request.node}.{job.id}"  # nodes on one machine are asked under one id
        pems = folder / FILES
        shutil.rmtree(pems, ignore_errors=True)  # of an agent that was killed
        url = monarch.url(seat.address, free_port(seat.address))
        child = _start(url, folder, pems, {**_environment(seat, pems, job), marks.STARTED_BY: mark})
        try:
            yield from _until_it_listens(child, folder, pems / READY, job)
            if not job.over:
                yield {"address": url, "release": (pems / READY).read_text()}
            while not job.over:
                if run := seat.run_here():
                    raise CannotDo(f"run {run} has got the node")
                _refuse_ended(child, folder)
                job.gone.wait(LOOK_S)
                yield None
        finally:
            log.info("the mesh of %s ends here", job.request.by)
            command.end(child)
            _kill_marked(mark)
            shutil.rmtree(pems, ignore_errors=True)


def _environment(seat: Seat, pems: Path, job: Job) -> dict[str, str]:
    try:
        files = monarch.settle(pems, job.request.pems)
    except (OSError, KeyError) as error:
        raise CannotDo(f"the files of the mesh cannot be written to {pems}: {error}") from error
    return {**monarch.TUNED, **os.environ, **files, ADDRESS: seat.address}


def _start(url: str, folder: Path, pems: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    argv = programs.command("mesh_worker", url, str(pems / READY))
    try:
        with (folder / OUTPUT).open("ab") as output:
            # it ends when this agent closes its standard input, in whatever way
            return subprocess.Popen(
                argv, env=env, cwd=folder, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )
    except OSError as error:
        raise CannotDo(f"its Monarch worker does not start: {error}") from error


def _until_it_listens(child: subprocess.Popen[bytes], folder: Path, ready: Path, job: Job) -> Answer:
    until = time.monotonic() + LISTENS_WITHIN_S
    while not ready.exists() and not job.over:
        _refuse_ended(child, folder)
        if time.monotonic() > until:
            raise CannotDo(f"its Monarch worker does not listen after {LISTENS_WITHIN_S:g} s: see {folder / OUTPUT}")
        job.gone.wait(LOOK_S)
        yield None


def _refuse_ended(child: subprocess.Popen[bytes], folder: Path) -> None:
    if (code := child.poll()) is not None:
        if code == MISCONFIGURED:
            raise CannotDo(f"a mesh {missing('monarch')} there")
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        raise CannotDo(f"its Monarch worker has ended ({how}): see {folder / OUTPUT}")


def _kill_marked(mark: str) -> None:
    """Kills what the worker and its processes have left behind, wherever it moved."""
    left = [stat for stat in process.all_processes() if stat.running and marks.of(stat.pid) == mark]
    process.kill_and_wait(left, command.ENDS_WITHIN_S)
