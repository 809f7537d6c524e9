"""Does what is asked of this node, one function for each kind of request."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.agent.names import TrainerName, about, parse
from agents.requests import command, debugger, logs, mesh, stacks
from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire.node_requests import NodeRequest
from supervisor.wire.records import ProcessRecord

log = logging.getLogger(__name__)


class Asked:
    """Does what a person asks of this node. Trusts nothing in a request but its fields: folders are those of processes that
    the shim has started."""

    def __init__(
        self,
        folder: Path,
        processes: Callable[[], Sequence[ProcessRecord]],
        say: Callable[[str], None],
        seat: mesh.Seat | None = None,
    ) -> None:
        """`folder`: the node's. `processes`: as the agent knows them, from any thread. `say`: prints a sentence on the
        node, where people look first. `seat`: the place for a mesh; None: this node has none."""
        self._folder = folder
        self._seat = seat
        self._processes = processes
        self._say = say

    def __call__(self, request: NodeRequest, job: Job) -> Answer:
        """Does it. Raises CannotDo."""
        match request.what:
            case "stacks":
                return stacks.read(self._ranks(request), job)
            case "exec":
                return self._exec(request, job)
            case "logs":
                return logs.read(self._folder, request, job)
            case "follow":
                return logs.follow(self._folder, request, job)
            case "hooks":
                return logs.hooks(self._folder, request)
            case "debug":
                return debugger.converse(self._rank(request), request, job)
            case "mesh":
                return self._mesh(request, job)

    def _ranks(self, request: NodeRequest) -> list[tuple[TrainerName, ProcessRecord]]:
        """Returns the newest generation of each rank that the request is about, ended or not."""
        newest: dict[tuple[int, int], tuple[TrainerName, ProcessRecord]] = {}
        for record in self._processes():
            name = parse(record.name)
            if isinstance(name, TrainerName) and _is_asked(name, request):
                known = newest.get((name.group, name.rank))
                if known is None or known[0].generation < name.generation:
                    newest[name.group, name.rank] = name, record
        return [newest[key] for key in sorted(newest)]

    def _rank(self, request: NodeRequest) -> ProcessRecord:
        """Returns the running rank that the request is about. Raises CannotDo."""
        running = [record for _, record in self._ranks(request) if not record.exited]
        if request.group is None or request.rank is None or not running:
            raise CannotDo(f"rank {request.rank} of group {request.group} of run {request.run} does not run there")
        return running[0]

    def _mesh(self, request: NodeRequest, job: Job) -> Answer:
        if self._seat is None:
            raise CannotDo("it is a service host, and has no place for a mesh")
        self._say(
            f"{request.by} asks for a Monarch mesh on this node: until it ends, other users of this machine can run "
            "programs as this one (docs/MONARCH.md)"
        )
        return mesh.hold(self._seat, self._folder / "mesh", job)

    def _exec(self, request: NodeRequest, job: Job) -> Answer:
        env, folder, where = dict(os.environ), self._folder, "on this node"
        if request.rank is not None:
            record = self._rank(request)
            folder, where = Path(record.folder), f"in the folder of {record.name}"
            env = command.of_rank(record.pid, folder)
        sentence = f"{request.by} runs a command {where}: {' '.join(request.command)}"[:1000]
        log.warning("%s", sentence, extra=about(folder.name))
        self._say(sentence)
        return command.run(request.command, env, folder, job, request.most_bytes)


def _is_asked(name: TrainerName, request: NodeRequest) -> bool:
    """Returns true if the request is about this rank."""
    return name.run == request.run and request.group in (None, name.group) and request.rank in (None, name.rank)
