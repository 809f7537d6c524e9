"""The shim: main process of a node, parent of everything there, keeper of the forwarder. It decides nothing.

Runs as `python -m agents.shim ...`. docs/adr/0001-node-protocols.md has its protocol. Standard library only, so that it
stays small and rarely changes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agents.gate.forwarder import PING_EVERY_S, Forwarder
from agents.health.oom_kills import Ooms
from agents.shim import process
from agents.shim.active_clock import AwakeClock, Still
from agents.shim.keepalive import Agent, ForkError, Kept, Warm
from agents.shim.orphans import left_behind
from agents.shim.process_table import LEFTOVER_DEADLINE_S, Child, Table, is_last
from agents.shim.settings import Settings, parse
from supervisor.wire import environment, marks, sockets
from supervisor.wire.aside import Aside
from supervisor.wire.security import PRIVATE, SecurityError

LAST_WORDS_S = 2.0
"""Seconds that the shim's end waits for a disk that stalls."""
AGENT_LAST_WORDS_S = 2.0
"""Seconds for the agent at the end, to report how the trainers ended and give its lease back."""


AGENT_FROZEN_S = 10.0
"""Seconds of silence after which an agent counts as frozen. It pings every second from its event loop, unless it is
stopped or hangs in a call."""
LOOK_S = 1.0
LEFT_LOOK_S = 0.05
"""Seconds between two looks at what is left behind: a killed process is gone in milliseconds."""


LEAVING = "the scheduler gave notice (SIGUSR1)"
"""Reason reported after a SIGUSR1 to the shim. When the node ends is unknown, and no clocks are compared."""


CONNECTIONS = 64
"""Most connections to the shim's socket. An agent has two."""

LONGEST_REQUEST = 4 << 20
"""Most bytes of a request: secrets have 64 KiB each, and a config tens of them."""
SAID_CHARACTERS = 1000
"""Most characters of a sentence that the agent has the shim print."""


class Refusal(Exception):
    """A request that cannot be met; the text says why."""


class Shim:
    """Runs one node: starts, signals and reaps its processes, and answers the agent."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._node = settings.node_folder
        self._records, self._words = Aside("records"), Aside("words")
        self._table = Table(self._node, self._records.ask)
        self._forwarder = Forwarder(settings.node, self._say_reaches, self._say_trip, settings.credentials)
        self._agent = Agent(settings.arguments(), str(self._node / "agent.log"))
        self._warm = None if settings.cold else Warm(str(self._node / "warm.log"), self._say_warm)
        self._kept: list[Kept] = [self._agent, *([self._warm] if self._warm else [])]
        self._starting: dict[str, asyncio.Task[Child]] = {}
        self._forking = 0
        self._unclaimed: dict[int, tuple[int, int | None, int | None]] = {}
        """pid -> start_ticks, exit code, signal of children that ended before the warm process reported their pid"""
        self._watchers: set[asyncio.StreamWriter] = set()
        self._connections = 0
        self._spare = process.Spare()
        self._stop = asyncio.Event()
        self._pings: tuple[int, int] = (0, 0)
        """Pid of the agent that sent the newest ping, and how many it has sent."""
        self._leaving = ""
        self._ooms = Ooms()
        self._sent: dict[str, int] = {}
        """process -> the newest signal that was sent to end it"""

    # --- life ---

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap_all)
        loop.add_signal_handler(signal.SIGUSR1, self._notice)
        # the notice was held until now, and our starter may have blocked any signal: without SIGCHLD no exit would be
        # seen
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1])
        process.say_by(self._words.ask)
        for sentence in self._table.take_over():
            process.say(sentence)
        self._table.remember("shim_started", pid=os.getpid(), allocation=self._settings.allocation)
        server = await asyncio.start_unix_server(
            self._serve, sock=sockets.listen(self._node / "shim.sock"), limit=LONGEST_REQUEST
        )
        await self._records.done(lambda: None)
        for kept in self._kept:
            kept.on_start, kept.may_start = self._keep_record, lambda: self._records.left == 0
            kept.start()
        process.say(f"node {self._settings.node} is up in {self._node}")
        watching = asyncio.create_task(self._watch_agent())
        await self._stop.wait()
        watching.cancel()
        self._table.remember("shim_stopping", pid=os.getpid())
        self._tell_watchers({"stopping": True})
        await self._end_all()
        server.close()
        self._forwarder.close()
        self._table.remember("shim_stopped", pid=os.getpid())
        for aside in (self._records, self._words):
            await aside.within(LAST_WORDS_S, lambda: None)
        process.say_by(None)

    def _notice(self) -> None:
        """Passes on the scheduler's notice that this node will end soon. A second notice changes nothing."""
        if not self._leaving:
            self._leaving = LEAVING
            self._table.remember("leaving", pid=os.getpid(), why=LEAVING)
            self._tell_watchers({"leaving": LEAVING})
            process.say(f"node {self._settings.node} will be ended soon: {LEAVING}")

    async def _watch_agent(self) -> None:
        """Kills an agent that is frozen: the next one adopts what runs. An agent of an older version never pings and is
        left alone. It takes two looks in a row, because the shim itself may have been frozen."""
        clock, still, late = AwakeClock(2 * LOOK_S), Still(), 0
        while True:
            await asyncio.sleep(LOOK_S)
            self._ooms.look([c.pid for c in self._workloads() if not c.exited], time.monotonic())
            agent, (pid, _) = self._agent, self._pings
            silent_s = still.look(self._pings, clock.look(asyncio.get_running_loop().time()))
            late = late + 1 if pid and pid == agent.pid and silent_s >= AGENT_FROZEN_S else 0
            if late >= 2:
                late = 0
                process.say(
                    f"the agent (pid {agent.pid}) has been silent for {silent_s:.0f} s: it is frozen, killing it"
                )
                self._table.remember("agent_frozen", pid=agent.pid, start_ticks=agent.start_ticks, silent_s=silent_s)
                process.send_signal(agent.pid, agent.start_ticks, signal.SIGKILL)

    def _keep_record(self, kept: Kept) -> None:
        name = "agent" if kept is self._agent else "warm"
        child = Child(name, kept.pid, kept.start_ticks, str(self._node))
        self._table.put(child)
        self._table.remember("spawned", child)

    async def _end_all(self) -> None:
        """Sends TERM to every session, and KILL after the grace; the agent ends last, so that it reports the others."""
        for kept in self._kept:
            kept.stop_keeping()
        if self._warm is not None and self._warm.pid:
            process.signal_session(self._warm.pid, self._warm.start_ticks, signal.SIGKILL)  # it keeps nothing
        until = asyncio.get_running_loop().time() + 2 * self._settings.grace_s
        workloads = [name for name in self._table.children if name not in ("agent", "warm") and not is_last(name)]
        for name in workloads:
            self._signal(name, signal.SIGTERM, "the node is stopped")
        await self._until_ended(workloads, self._settings.grace_s)
        for name in workloads:
            self._signal(name, signal.SIGKILL, "the node is stopped, and its grace is over")
        await self._until_ended(workloads, self._settings.grace_s)
        await self._until_stays_end(until)
        self._signal("agent", signal.SIGTERM, "the node is stopped")
        await self._until_ended(["agent"], AGENT_LAST_WORDS_S)
        for stat in [*process.marked(str(self._node)), *self._left_behind()]:
            process.send_signal(stat.pid, stat.start_ticks, signal.SIGKILL)
        await self._until_ended(list(self._table.children), AGENT_LAST_WORDS_S)
        self._reap_all()

    async def _until_stays_end(self, until: float) -> None:
        """Waits while the agent still runs hooks `after`, and then kills those that have not ended."""
        loop, agent = asyncio.get_running_loop(), self._table.children.get("agent")
        while agent is not None and not agent.exited and (left_s := until - loop.time()) > 0:
            if not await self._records.within(left_s, partial(_has_stays, self._node)):
                return
            await asyncio.sleep(0.02)
        for name in filter(is_last, list(self._table.children)):
            self._signal(name, signal.SIGKILL, "the node is stopped, and its grace is over")

    async def _until_ended(self, names: Sequence[str], deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        while any(not self._table.children[name].exited for name in names if name in self._table.children):
            if loop.time() > until:
                return
            await asyncio.sleep(0.02)

    # --- children ---

    def _reap_all(self) -> None:
        with self._spare.freed():
            self._reap()

    def _reap(self) -> None:
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            stat = process.stat_of(found.si_pid)
            ticks = stat.start_ticks if stat is not None else 0
            if stat is not None and stat.session == found.si_pid:
                # its helpers end with it; until it is reaped no other process can get its pid
                process.signal_members(found.si_pid, signal.SIGKILL)
            os.waitid(os.P_PID, found.si_pid, os.WEXITED)
            by_itself = found.si_code == os.CLD_EXITED
            self._ended(
                found.si_pid, ticks, found.si_status if by_itself else None, None if by_itself else found.si_status
            )

    def _ended(self, pid: int, start_ticks: int, exit_code: int | None, number: int | None) -> None:
        child = next((c for c in self._table.children.values() if c.pid == pid and not c.exited), None)
        if child is None:
            if self._forking:
                self._unclaimed[pid] = (start_ticks, exit_code, number)
            return
        child.exited, child.exit_code, child.signal, child.ended_s = True, exit_code, number, time.monotonic()
        if number is not None and number != self._sent.get(child.name):
            child.told = ""  # the signal that we sent did not end it
        self._sent.pop(child.name, None)
        child.oom = self._ooms.ended(pid, child.ended_s, number == signal.SIGKILL and not child.told)
        self._table.put(child)
        about = {"told": child.told} if child.told else {}
        self._table.remember("exited", child, exit_code=exit_code, signal=number, oom=child.oom, **about)
        for kept in self._kept:
            if kept.pid == pid:
                if not self._stop.is_set():
                    kept.ended(f"exit code {exit_code}" if number is None else f"signal {number}")
                return
        self._forwarder.gone(child.name.rpartition(".")[0])
        self._tell_watchers({"exited": child.record()})
        self._end_left_behind()

    async def _spawn(self, request: dict[str, Any]) -> Child:
        name, log, directory = request["name"], request["log"], str(request.get("directory", ""))
        around = self._around(request)
        own = {str(key): str(value) for key, value in request.get("own", {}).items()}
        mark = {**own, marks.STARTED_BY: marks.mark(name)}
        await self._records.done(partial(os.makedirs, request["folder"], exist_ok=True))
        # before the process exists: if the shim is killed in between, the next one knows that this name was used
        self._table.put(Child(name, 0, 0, request["folder"]))
        try:
            await self._records.done(lambda: None)
            await self._until_none_is_left_behind()
            if self._stop.is_set() and not is_last(name):
                raise Refusal("this node is stopping")  # `_end_all` has already looked for what runs
            child = await self._fork_warm(request, around, mark)
            if child is None:
                pid = process.start(request["argv"], {**around, **mark}, log, directory=directory)
                stat = process.stat_of(pid)
                child = Child(name, pid, stat.start_ticks if stat else 0, request["folder"])
        except BaseException:
            self._table.drop(name)
            raise
        self._table.put(child)
        self._ooms.look([child.pid], time.monotonic())
        self._table.remember("spawned", child, warm=child.warm)
        early = self._unclaimed.pop(child.pid, None)
        if early is not None:
            self._ended(child.pid, *early)
        return child

    def _around(self, request: dict[str, Any]) -> dict[str, str]:
        return environment.of_rank(
            os.environ,
            {str(key): str(value) for key, value in request["env"].items()},
            request.get("pass", ()),
            request.get("unset", ()),
            (self._settings.address,),
        )

    async def _fork_warm(self, request: dict[str, Any], around: dict[str, str], mark: dict[str, str]) -> Child | None:
        """Returns the warm process's fork, or None if the trainer must start cold."""
        if self._warm is None or not request.get("launch"):
            return None
        self._warm.expect_start(used=not request.get("cold"))
        if request.get("cold"):
            return None
        if not self._warm.begin_in(around, str(request.get("directory", ""))) or self._warm.state != "ready":
            return None
        self._forking += 1
        try:
            pid = await self._warm.fork(request["launch"], request["log"], mark)
        except ForkError as error:
            process.say(f"the warm process forked no trainer for {request['name']}: {error}; starting it cold")
            self._warm.expect_start(used=False)
            self._kill_strangers()
            return None
        finally:
            self._forking -= 1
            if not self._forking:
                # a waiter takes its entry before the loop comes round again
                asyncio.get_running_loop().call_later(1.0, self._forget_unclaimed)
        stat = process.stat_of(pid)
        early = self._unclaimed.get(pid)
        ticks = early[0] if early is not None else stat.start_ticks if stat is not None else 0
        return Child(request["name"], pid, ticks, request["folder"], warm=True)

    def _forget_unclaimed(self) -> None:
        if not self._forking:
            self._unclaimed.clear()

    def _left_behind(self) -> list[process.Stat]:
        """Returns what ended workloads left behind. Unmarked processes may belong to a live one, or be just forked. As
        a container's first process, the shim also inherits what a person started there."""
        if os.environ.get(process.SHIM_PID) != str(os.getpid()):
            return []  # not a node's main process: its children are not a node's either
        known = {child.pid for child in self._table.children.values() if not child.exited}
        alive = {child.name for child in self._workloads() if not child.exited}
        unmarked = not alive and not self._forking and os.getpid() != 1
        return left_behind(known, alive | self._starting.keys(), unmarked)

    def _end_left_behind(self) -> list[process.Stat]:
        found = self._left_behind()
        for stat in found:
            by = marks.of(stat.pid) or "a process that has ended"
            self._table.remember("left_behind_killed", pid=stat.pid, start_ticks=stat.start_ticks, started_by=by)
            process.send_signal(stat.pid, stat.start_ticks, signal.SIGKILL)
        return found

    async def _until_none_is_left_behind(self) -> None:
        """Waits until all that was left behind has ended. Raises Refusal if some of it does not end."""
        until = time.monotonic() + LEFTOVER_DEADLINE_S
        while found := self._end_left_behind():
            if time.monotonic() > until:
                pids = ", ".join(str(stat.pid) for stat in found)
                raise Refusal(f"left behind by an earlier generation, and not ended even by SIGKILL: process {pids}")
            await asyncio.sleep(LEFT_LOOK_S)

    def _kill_strangers(self) -> None:
        """Kills a trainer that a failed warm process may have left unrecorded: never two of one name."""
        known = {child.pid for child in self._table.children.values() if not child.exited}
        for stat in process.all_processes():
            if stat.parent == os.getpid() and stat.session not in known:
                process.send_signal(stat.pid, stat.start_ticks, signal.SIGKILL)

    def _signal(self, name: str, number: int, why: str, cut_off_s: float | None = None) -> bool:
        child = self._table.children.get(name)
        if child is None or child.exited or not child.pid:
            return False
        self._table.remember("signalled", child, signal=int(number), why=why, cut_off_s=cut_off_s)
        if number in (signal.SIGTERM, signal.SIGKILL):
            child.told, self._sent[name] = why or "no reason was given", int(number)
        return process.signal_session(child.pid, child.start_ticks, number)

    # --- requests ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            while self._connections <= CONNECTIONS and (line := await reader.readline()):
                answer = await self._answer(line)
                writer.write(json.dumps(answer).encode() + b"\n")
                if answer.pop("watching", False):
                    self._begin_watch(writer)
                await writer.drain()
        except (OSError, ValueError):
            pass  # the agent is gone, or sent nothing that can be answered: it comes back with a new connection
        finally:
            self._connections -= 1
            self._watchers.discard(writer)
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return await self._do(request)
        except (Refusal, SecurityError, OSError) as error:
            return {"ok": False, "error": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return {"ok": False, "error": f"bad request {line[:40]!r}: {type(error).__name__}: {error}"}

    async def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "spawn":
                return {"ok": True, "process": (await self._spawn_once(request)).record()}
            case "signal":
                why, cut_off_s = str(request.get("why", "")), request.get("cut_off_s")
                if not self._signal(request["name"], int(request["signal"]), why, cut_off_s):
                    raise Refusal(f"{request['name']} does not run")
                return {"ok": True}
            case "list":
                return {
                    "ok": True,
                    "processes": [c.record() for c in self._workloads()],
                    "warm": self._warm_state(),
                    "reaches": self._forwarder.reaches,
                    "leaving": self._leaving,
                }
            case "forward":
                port = await self._forwarder.set(
                    request["run"],
                    int(request["group"]),
                    int(request["generation"]),
                    request["gate"],
                    request.get("gate_node", ""),
                    float(request.get("ping_every_s", PING_EVERY_S)),
                )
                ranks = [c for c in self._workloads() if c.name.rpartition(".")[0] == request["name"]]
                if any(child.exited for child in ranks):
                    self._forwarder.gone(request["name"])  # the forwarder knows it already, unless this is a new shim
                return {"ok": True, "port": port}
            case "forget":
                return self._forget(request["name"])
            case "warm":  # for a start that is to come: what it finds is not stale
                if self._warm is not None:
                    self._warm.begin_in(self._around(request), str(request.get("directory", "")))
                return {"ok": True}
            case "ahead":
                if self._warm is not None:
                    self._warm.build_ahead(str(request["launch"]))
                return {"ok": True}
            case "say":
                process.say(str(request["text"])[:SAID_CHARACTERS])
                return {"ok": True}
            case "watch":
                return {"ok": True, "watching": True}
            case "ping":
                pid = int(request["pid"])
                self._pings = (pid, self._pings[1] + 1 if pid == self._pings[0] else 1)
                return {"ok": True}
            case other:
                raise Refusal(f"there is no request {other!r}")

    async def _spawn_once(self, request: dict[str, Any]) -> Child:
        name = request["name"]
        if name in self._starting:
            return await asyncio.shield(self._starting[name])
        if name in self._table.children:
            return self._table.children[name]
        if self._stop.is_set() and not is_last(name):
            raise Refusal("this node is stopping")
        self._starting[name] = asyncio.create_task(self._spawn(request))
        try:
            # shielded: an agent that dies meanwhile must not leave a trainer without a record
            return await asyncio.shield(self._starting[name])
        finally:
            self._starting[name].add_done_callback(lambda _: self._starting.pop(name, None))

    def _forget(self, name: str) -> dict[str, Any]:
        child = self._table.children.get(name)
        if child is not None and not child.exited:
            raise Refusal(f"{name} (pid {child.pid}) still runs: only what has exited can be forgotten")
        self._table.drop(name)
        generation = name.rpartition(".")[0]
        if not any(other.name.rpartition(".")[0] == generation for other in self._workloads()):
            self._forwarder.drop(generation)
        return {"ok": True}

    def _workloads(self) -> list[Child]:
        return [c for c in self._table.children.values() if c.name not in ("agent", "warm") and (c.pid or c.exited)]

    # --- watchers ---

    def _warm_state(self) -> str:
        return self._warm.state if self._warm is not None else "off"

    def _begin_watch(self, writer: asyncio.StreamWriter) -> None:
        self._watchers.add(writer)
        writer.write(json.dumps({"warm": self._warm_state()}).encode() + b"\n")
        writer.write(json.dumps({"reaches": self._forwarder.reaches}).encode() + b"\n")
        writer.write(json.dumps({"trips": self._forwarder.trips}).encode() + b"\n")
        if self._leaving:
            writer.write(json.dumps({"leaving": self._leaving}).encode() + b"\n")
        for child in self._workloads():
            if child.exited:
                writer.write(json.dumps({"exited": child.record()}).encode() + b"\n")

    def _say_warm(self) -> None:
        if self._warm is not None and self._warm.state == "ready":
            runs = [child for child in self._workloads() if not child.exited]
            self._warm.note_running([(f"{child.folder}/launch.json", child.pid) for child in runs])
        self._table.remember("warm", state=self._warm_state())
        self._tell_watchers({"warm": self._warm_state()})

    def _say_reaches(self, way: str, reaches: bool) -> None:
        self._tell_watchers({"reaches": {way: reaches}})

    def _say_trip(self, way: str, trip_ms: float) -> None:
        self._tell_watchers({"trips": {way: trip_ms}})

    def _tell_watchers(self, message: dict[str, Any]) -> None:
        for writer in self._watchers:
            writer.write(json.dumps(message).encode() + b"\n")


def _has_stays(node: Path) -> bool:
    """Returns true if a run with hooks has not left this node (`agents.agent.hooks`)."""
    return any(node.glob("hooks/*/stay.json"))


def _lock(folder: Path) -> int:
    """Takes the node's lock, held until the process ends in any way. Raises Refusal if another shim has it."""
    handle = os.open(folder / "shim.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 100).decode(errors="replace").strip() or "unknown"
        raise Refusal(
            f"another shim (pid {holder}) runs this node in {folder}; stop it first, or use another --node or --home"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def _decide_environment(settings: Settings) -> None:
    """Cleans the environment of the shim, and so of all that it starts."""
    wanted = environment.of_node(os.environ, (settings.address,))
    removed = sorted(name for names, _ in environment.found(os.environ, "removed") for name in names)
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    if removed:
        process.say(f"not passed on to what runs here: {', '.join(removed)} (`supervisor doctor` says why)")


def main(arguments: Sequence[str] | None = None) -> int:
    process.hold_notice()
    process.open_standard_files()
    os.umask(PRIVATE)
    settings = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        settings.node_folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(settings.node_folder)
        _decide_environment(settings)
        os.environ[process.SHIM_PID] = str(os.getpid())
        os.environ[process.NODE_DIR] = str(settings.node_folder)
        os.environ[marks.STARTED_BY] = marks.BLANK
        process.become_subreaper()
        asyncio.run(Shim(settings).run())
        os.close(lock)
    except Refusal as error:
        process.say(str(error))
        return 1
    except OSError as error:
        process.say(f"cannot run node {settings.node} in {settings.node_folder}: {error}")
        return 1
    return 0
