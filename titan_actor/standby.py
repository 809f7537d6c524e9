"""Hot standbys: the next start of each rank that trains on this node, forked and built before it is needed.

The warm process makes them once the ranks of a group train, where the memory allows it. A standby has built all but what
belongs to one generation: its records, the meeting with the group's other ranks, TorchFT's manager, the place in the data
and the state. It waits for the launch file of a start that differs in these alone, outside of the quorum; the warm process
then answers with its pid, as if it had just forked it. A spare's standbys are of whichever group comes there. Where there
is no such standby the rank is forked as ever, and meets those that have one.

A standby is the child of a process between, which ends when the standby is used: the shim adopts it, as any fork.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from supervisor.wire import marks, standbys
from supervisor.wire.records import TrainerLaunch, decode
from titan_actor import forking, kept_state, mends, process, trainer

LOOK_S = 0.25
"""Seconds between two looks at what trains here."""
COMMITS = 2
"""Committed steps of a rank after which its standby is built: its own start is over then."""
LEAST_FREE = 2.0
"""Standbys are built where this many times the memory of the ranks here is free, and ended where less than a rank's is."""
UNUSED_S = 120.0
"""Seconds after the end of its rank for which a standby waits, where no other starts here: the longest pause before a
restart, and a fence."""
ANSWER_S = 1.0
LOG = "standby.log"
"""Beside the folders of the ranks: what standbys print until they are used."""
LONGEST_MESSAGE = 1 << 18
ANY = -1
"""Stands for the group of a spare's standbys."""


def shape(launch: TrainerLaunch) -> TrainerLaunch:
    """Returns a launch without what a standby takes over when it is used."""
    return replace(
        launch, generation=0, master_port=0, store="", lighthouse="", rank_dir="", checkpoint=None, resume="disk",
        writer=False, from_memory=0, collective_timeout_s=0.0,
    )  # fmt: skip


@dataclass
class Standby:
    """One built rank that waits."""

    launch: TrainerLaunch
    between: int
    """pid of the process between."""
    ours: socket.socket
    ready: bool = False
    pid: int = 0
    handle: int = -1
    """pidfd of the standby once it is ready."""

    def look(self) -> bool:
        """Returns false if it has ended."""
        try:
            if not (message := self.ours.recv(LONGEST_MESSAGE, socket.MSG_DONTWAIT)):
                return False
            self.pid = int(json.loads(message)["pid"])
            self.handle, self.ready = os.pidfd_open(self.pid), True
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def use(self, request: dict[str, Any]) -> int:
        """Has it become the rank of this request; returns its pid. Raises OSError if it does not."""
        self.ours.settimeout(ANSWER_S)
        self.ours.send(json.dumps(request).encode())
        if not self.ours.recv(LONGEST_MESSAGE):
            raise OSError("the standby has ended")
        os.waitpid(self.between, 0)  # it has ended that one, and is the shim's by now
        self.ours.send(b"go")
        self._close()
        return self.pid

    def end(self) -> None:
        """Ends it, with the process between; also where it has begun, but did not answer: there must be no second."""
        if self.ready:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.between, signal.SIGKILL)
            os.waitpid(self.between, 0)
        self._close()

    def _close(self) -> None:
        self.ours.close()
        if self.ready:
            os.close(self.handle)


@dataclass
class Team:
    """The ranks of a group that train here, and their standbys."""

    ranks: dict[int, tuple[TrainerLaunch, int]] = field(default_factory=dict)
    """Rank -> its launch and pid."""
    standbys: dict[int, Standby] = field(default_factory=dict)
    generation: int = 0
    tried: bool = False
    """True once standbys were made, or could not be."""
    used_by: int | None = None
    """Generation that uses the standbys."""
    ended_at: float | None = None


class Standbys:
    """The warm process's standbys."""

    def __init__(self, files: kept_state.Files) -> None:
        self._files, self._teams = files, dict[tuple[str, int], Team]()
        self._ahead: TrainerLaunch | None = None
        """The start that this node, a spare, builds ahead."""
        self._told: dict[Path, list[int]] = {}
        self._possible = not mends.on_gpu()  # a second model would not fit, and its context is not to be had twice

    @property
    def any(self) -> bool:
        """True while there is something to look at."""
        return bool(self._teams) or self._ahead is not None

    def started(self, launch: TrainerLaunch, pid: int) -> None:
        """Takes note of a rank that was started here."""
        key = launch.run, launch.group
        self._ahead = None  # this node is no spare any more
        self._drop_ahead()
        if not (self._possible and launch.standby and not launch.trainer.command):
            return
        for other in [each for each, team in self._teams.items() if each != key and team.ended_at is not None]:
            self._drop(other)  # its group was moved away, or its run has ended
        team = self._teams.get(key)
        if team is None or team.generation != launch.generation or launch.rank in team.ranks:
            self._drop(key, keep=team is not None and team.used_by == launch.generation)
            team = self._teams.setdefault(key, Team())
            team.ranks, team.generation, team.tried, team.ended_at = {}, launch.generation, False, None
        team.ranks[launch.rank] = (launch, pid)

    def build_ahead(self, launch: TrainerLaunch | None) -> None:
        """Builds a start like this, of whichever group comes here, while nothing trains here. None: no more."""
        known = self._teams.get((launch.run, ANY)) if launch is not None and launch == self._ahead else None
        if known is None or not known.standbys:
            self._ahead = launch if self._possible else None
            self._drop_ahead()
            self._look_ahead()

    def _drop_ahead(self) -> None:
        for key in [key for key in self._teams if key[1] == ANY]:
            self._drop(key)

    def _look_ahead(self) -> None:
        """Builds ahead once the ranks that trained here have ended."""
        launch = self._ahead
        if launch is None or (launch.run, ANY) in self._teams:
            return
        if any(_lives(pid) for team in self._teams.values() for _, pid in team.ranks.values()):
            return
        for key in list(self._teams):
            self._drop(key)  # its group has left this node
        team = self._teams[launch.run, ANY] = Team(tried=True)
        ranks = range(launch.first_rank, launch.first_rank + launch.local_world_size)
        self._try(team, [replace(launch, rank=rank, group=0) for rank in ranks], f"{launch.run} of any group")

    def take(self, launch: TrainerLaunch, request: dict[str, Any]) -> int | None:
        """Returns the pid of the standby that becomes this rank; None: there is none."""
        key = launch.run, launch.group
        team = self._teams.get(key)
        if (team is None or not team.standbys) and self._of_any(launch):
            team = self._teams[key] = self._teams.pop((launch.run, ANY))
        if team is None or team.used_by not in (None, launch.generation):
            return None
        one = team.standbys.get(launch.rank)
        here = range(launch.first_rank, launch.first_rank + launch.local_world_size)
        if team.standbys and not any(rank in here for rank in team.standbys):
            self._drop(key)  # this node has other ranks of the group by now
            return None
        if one is not None and shape(one.launch) != shape(launch):
            self._drop(key)
            return None
        team.used_by = launch.generation  # those of its other ranks wait for them
        if one is None:
            return None
        del team.standbys[launch.rank]
        try:
            if one.look() and one.ready:
                return one.use(request)
        except (OSError, ValueError):
            pass
        one.end()
        return None

    def _of_any(self, launch: TrainerLaunch) -> bool:
        """Has a spare's standbys be of this launch's group; returns false if there are none, or they cannot be."""
        team = self._teams.get((launch.run, ANY))
        if team is None or launch.from_memory:
            return False
        for rank, one in team.standbys.items():
            one.launch = replace(one.launch, group=launch.group)
            self._files.rename((launch.run, ANY, rank), (launch.run, launch.group, rank))
        return True

    def look(self) -> None:
        """Makes standbys of ranks that train, and ends those that no one will use."""
        now = time.monotonic()
        for key, team in list(self._teams.items()):
            alive = all(_lives(pid) for _, pid in team.ranks.values())
            team.ended_at = None if alive else team.ended_at or now
            if team.ended_at is not None and (now > team.ended_at + UNUSED_S or self._is_over(team)):
                self._drop(key)
                continue
            for rank in [rank for rank, one in team.standbys.items() if not one.look()]:
                team.standbys.pop(rank).end()
            if alive and not team.tried and self._train(team):
                team.tried, team.used_by = True, None
                if self._has_room(team, LEAST_FREE):
                    self._try(team, [launch for launch, _ in team.ranks.values()], f"{key[0]} group {key[1]}")
            elif team.standbys and not self._has_room(team, 1.0):
                self._end(team)
        self._look_ahead()
        self._tell()

    def _tell(self) -> None:
        """Writes the pids of those that are built, for the node's agent."""
        now: dict[Path, list[int]] = {ranks: [] for ranks in self._told}
        for one in (one for team in self._teams.values() for one in team.standbys.values() if one.ready):
            now.setdefault(Path(one.launch.rank_dir).parent, []).append(one.pid)
        for ranks in [ranks for ranks in now if now[ranks] != self._told.get(ranks)]:
            with suppress(OSError):  # a full disk: the next change is written
                standbys.write(ranks, now[ranks])
        self._told = now

    def _train(self, team: Team) -> bool:
        """Returns true if all ranks of the group on this node have made steps."""
        launches = [launch for launch, _ in team.ranks.values()]
        return len(launches) == launches[0].local_world_size and all(
            int(_progress(one).get("commits", 0)) >= COMMITS for one in launches
        )

    def _is_over(self, team: Team) -> bool:
        return all(_progress(launch).get("phase") == "finished" for launch, _ in team.ranks.values())

    def _has_room(self, team: Team, times: float) -> bool:
        try:
            pids = [pid for _, pid in team.ranks.values()] or [one.pid for one in team.standbys.values() if one.ready]
            pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        except OSError:
            return True  # one has ended: this is when they are needed
        return kept_state.free_bytes() >= times * pages * os.sysconf("SC_PAGE_SIZE")

    def _try(self, team: Team, launches: list[TrainerLaunch], of: str) -> None:
        self._end(team)
        try:
            ranks = Path(launches[0].rank_dir).parent
            ranks.mkdir(parents=True, exist_ok=True)
            (ranks / LOG).write_bytes(b"")
            for launch in launches:
                team.standbys[launch.rank] = self._fork(launch, of_any=not team.ranks)
        except OSError as error:
            print(f"no standby of {of}: {error}", file=sys.stderr, flush=True)
            self._end(team)

    def _fork(self, launch: TrainerLaunch, of_any: bool) -> Standby:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        file = self._files.at((launch.run, ANY if of_any else launch.group, launch.rank))
        kept_state.DESCRIPTOR, kept_state.HOLDER = file, self._files.holder
        warm, between = os.getpid(), os.fork()
        if between == 0:
            _stand_between(launch, theirs, Path(launch.rank_dir).parent / LOG, warm, of_any)
        theirs.close()
        return Standby(launch, between, ours)

    def _drop(self, key: tuple[str, int], keep: bool = False) -> None:
        if keep or (team := self._teams.pop(key, None)) is None:
            return
        self._end(team)

    def _end(self, team: Team) -> None:
        for one in team.standbys.values():
            one.end()
        team.standbys = {}


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _progress(launch: TrainerLaunch) -> dict[str, Any]:
    try:
        return dict(json.loads((Path(launch.rank_dir) / "progress.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def _stand_between(launch: TrainerLaunch, theirs: socket.socket, log: Path, warm: int, of_any: bool) -> NoReturn:
    """Forks the standby, and ends once it is used; the standby ends with it before that."""
    try:
        forking.die_with_parent(warm)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        myself = os.getpid()
        if (child := os.fork()) == 0:
            _become_standby(launch, theirs, output, myself, of_any)
        forking.in_the_background(output, ())
        os.waitpid(child, 0)
    finally:
        os._exit(0)


def _become_standby(launch: TrainerLaunch, theirs: socket.socket, output: int, between: int, of_any: bool) -> NoReturn:
    code = 1
    try:
        forking.die_with_parent(between)
        keep = (kept_state.DESCRIPTOR, kept_state.HOLDER, theirs.fileno())
        forking.in_the_background(output, keep)
        forking.call_it("standby")
        rank = process.RankProcess(launch, warm=True, comes=lambda: _wait(theirs, between), of_any_group=of_any)
        code = trainer.run(rank)
    except BaseException:  # noqa: BLE001  (must not run on into the warm process's own loop)
        traceback.print_exc()
    process.leave(code)


def _wait(theirs: socket.socket, between: int) -> TrainerLaunch:
    """Returns the launch of the start that this standby is used for. Ends the process if there will be none."""
    forking.call_it("standby ready")
    theirs.send(json.dumps({"pid": os.getpid()}).encode())
    if not (message := theirs.recv(LONGEST_MESSAGE)):
        os._exit(0)
    request = json.loads(message)
    env = dict(request.get("env") or {})
    forking.outlive_parent()
    os.kill(between, signal.SIGKILL)
    forking.die_with_shim(between)
    theirs.send(b"here")
    # a warm process that has ended has not reported this pid: the shim starts another
    if theirs.recv(LONGEST_MESSAGE) != b"go":
        os._exit(0)
    theirs.close()
    output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    forking.write_to(output)
    os.close(output)
    marks.put(env.get(marks.STARTED_BY, ""))
    os.environ.update(env)
    forking.call_it("trainer")
    return decode(Path(request["launch"]).read_bytes(), TrainerLaunch)
