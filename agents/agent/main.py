"""The node agent: watches the node's processes, reports them, and moves what runs towards what is desired.

Runs as `python -m agents.agent ...`, a child of the shim. It may be killed at any moment, because it reads all its
state again from the shim, the ranks' files and etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from agents.agent import launch
from agents.agent.codes import Codes, Here
from agents.agent.desired import DesiredWatch, Wanted
from agents.agent.exporter import Exporter
from agents.agent.file_poller import ANSWERS_WITHIN_S, Looks
from agents.agent.hooks import Hooks
from agents.agent.log_budget import Logs
from agents.agent.names import TrainerName, about, parse
from agents.agent.node_view import View
from agents.agent.rank_commands import RankCommands
from agents.agent.reconcile import Action, Forget, Forward, NotOurs, Start, StartLighthouse, Stop, reconcile
from agents.agent.reporter import Callbacks, Reporter
from agents.agent.shim_client import ShimClient, ShimLost, ShimRefused, Watched
from agents.agent.shim_client import record as to_record
from agents.agent.start_queue import Starts
from agents.agent.stops import Stops
from agents.agent.surroundings import StartFailed
from agents.agent.warm_process import WarmProcess
from agents.enrollment import Renewal
from agents.health import exit_decoder, machine
from agents.health.checks.node import NodeChecks, life
from agents.health.facts import Facts, host
from agents.health.facts.files import EVERY_S, Probe, SharedFolders, writes
from agents.health.facts.gpu import Gpus
from agents.requests.asked import Asked
from agents.requests.mesh import Seat
from agents.shim import process
from agents.shim.active_clock import AwakeClock
from agents.shim.settings import Settings
from agents.shim.settings import parse as parse_settings
from agents.threads.from_thread import from_thread
from supervisor.core.model.observed import UNUSABLE
from supervisor.core.model.spec import HangSpec
from supervisor.shell import failpoints
from supervisor.shell.etcd.inbox import ENDS_WITHIN_S, Inbox
from supervisor.shell.failpoints import reach
from supervisor.wire import logged
from supervisor.wire.aside import Aside
from supervisor.wire.records import (
    Fact,
    Health,
    NodeObserved,
    ProcessRecord,
    Registration,
    TrainerDesired,
)
from supervisor.wire.security import SecurityError
from supervisor.wire.version import version

log = logging.getLogger("agents.agent")

POLL_S, IDLE_POLL_S = 0.2, 1.0
"""Seconds between two looks at the ranks' files, and at a node without ranks. What comes from the shim, from etcd and from
threads has a turn at once."""
HEALTH_S = 5.0
READ_AGAIN_S = 1.0
"""Seconds that a start which etcd no longer wants waits for the watch to report the same, before it asks etcd again."""
TERM_PATIENCE_S = 0.5
"""Seconds after TERM in which the shim reports that it ends too. A scheduler sends TERM to every process of a job at
once. Without the shim's report this is an upgrade of the agent; with it, the agent stays to report how the trainers
end."""
CLEAN_WITHIN_S = 10.0
"""Seconds that an exit with code 0 waits for the rank's files: without its note that it is finished it is a failure."""
PINGS = 5
"""Signs of life of a group's node within a heartbeat timeout: as TorchFT's own, some may be late."""
LONGEST_TURN_S = 1.5
"""The most seconds between two turns that count against a process: the agent itself may have been frozen."""


class Agent:
    """Runs one node's agent until TERM, or until the shim is gone."""

    def __init__(self, settings: Settings, shim: ShimClient) -> None:
        self._settings = settings
        self._shim = shim
        self._view = View(settings)
        self._wanted = Wanted()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self._told_to_end: float | None = None
        self._shim_stops: float | None = None
        """When the shim reported that it ends."""
        self._starts = Starts(self._wake.set)
        self._not_ours: tuple[str, ...] = ()
        """Sentences on trainers of another allocation that are desired here and not started."""
        self._awake = AwakeClock(LONGEST_TURN_S)
        self._files, self._last_words = Aside("files"), Aside("last words")
        self._looks = Looks(self._view, self._files, settings.node_folder)
        self._logs = Logs(settings.node_folder)
        self._stops = Stops(settings, shim, self._view, self._files.ask)
        self._codes = Codes(
            settings.node_folder / "code", settings.credentials, from_thread(self._loop, self._on_codes)
        )
        self._hooks = Hooks(settings, shim, self._codes.tree)
        self._warm = WarmProcess(settings, shim, self._files, self._codes.tree)
        self._ends: dict[asyncio.Task[None], str] = {}
        """Ends that are being read, in the order in which the shim saw them, each with its generation."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Requests to the shim that nothing waits for."""
        self._commands: dict[str, RankCommands] = {}
        self._read: tuple[int, Wanted] = (0, Wanted())
        """The desired records as they were read after the report with this ticket."""
        self._news = asyncio.Event()
        """Set, and replaced, when the desired records changed or were read again."""
        self._early_exits: dict[str, ProcessRecord] = {}
        """Exits that the shim reported before it answered the spawn request."""
        self._reported_exits: set[str] = set()
        self._last_report: tuple[object, float] = (None, float("-inf"))
        self._last_health: tuple[object, float] = (None, float("-inf"))
        self._tickets: dict[int, NodeObserved] = {}
        security = settings.credentials()
        self._exporter = Exporter(settings.node, version(), security)
        self._renewal = Renewal(settings.security)
        port = self._exporter.serve(settings.address, settings.metrics_port, security)
        registration = Registration(
            node=settings.node,
            address=settings.address,
            host=settings.host,
            role=cast(Literal["trainer", "service"], settings.role),
            allocation=settings.allocation,
            slots=settings.slots if settings.role == "trainer" else 0,
            agent_pid=os.getpid(),
            version=version(),
            metrics_port=port,
            insecure=security.insecure,
            switch=settings.switch,
        )
        self._checks = NodeChecks(
            settings, life(), lambda record, still: self._reporter.check(record, still), self._files.ask
        )
        calls = Callbacks(
            written=from_thread(self._loop, self._on_written),
            checked=self._checks.written,
            took=self._exporter.reported,
            read=from_thread(self._loop, self._on_read),
            second=from_thread(self._loop, self._on_second),
        )
        self._reporter = Reporter(registration, settings.node_folder, settings.etcd, settings.lease_s, calls, security)
        self._desired = DesiredWatch(
            settings.node, settings.etcd, lambda: set(self._runs), from_thread(self._loop, self._on_wanted), security
        )
        self._seat = Seat(settings.address, self._run_here, from_thread(self._loop, lambda _: self._wake.set()))
        asked = Asked(
            settings.node_folder,
            lambda: list(self._view.processes.values()),
            from_thread(self._loop, self._on_second),
            self._seat if settings.role == "trainer" else None,
        )
        self._requests = Inbox(settings.node, settings.etcd, asked, self._is_registered, security)
        self._runs: frozenset[str] = frozenset()
        self._known_facts: tuple[Fact, ...] = ()
        self._run_folders = SharedFolders()
        local = Probe(settings.node_folder, writes, EVERY_S)
        self._gpus = Gpus()
        sources = (host.memory, host.clock, host.Links().read, local.read, self._run_folders.read, self._gpus.read)
        self._facts = Facts(sources, from_thread(self._loop, self._on_facts))

    # --- life ---

    async def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_term)
        records, self._view.leaving = await self._shim.listed()
        for record in records:
            self._adopt(record)
        adopted = self._view.running()
        log.info(
            "node %s: %s", self._settings.node, f"adopted {', '.join(adopted)}" if adopted else "nothing runs here"
        )
        self._runs = frozenset(self._view.runs())
        self._view.poll(self._loop.time())
        self._report(self._loop.time())
        watched = Watched(
            exited=self._on_exit,
            warm=self._on_warm,
            reaches=self._on_reaches,
            trips=self._on_trips,
            leaving=self._on_leaving,
            stopping=self._on_stopping,
        )
        self._checks.start(runs_here=bool(adopted))
        watching = asyncio.create_task(self._shim.watch(watched))
        watching.add_done_callback(lambda _: self._wake.set())
        self._reporter.start()
        self._renewal.start()
        self._desired.start()
        self._requests.start()
        self._facts.start()
        self._codes.start()
        self._gpus.start(self._facts.soon)
        try:
            while not self._ending.is_set():
                if watching.done():
                    watching.result()
                self._wake.clear()  # before the turn: what comes during it has a turn of its own
                await self._turn()
                await self._rest()
                self._may_end()
        finally:
            watching.cancel()
            await self._close()

    def _adopt(self, record: ProcessRecord) -> None:
        """Takes over a process of the shim's list, known by (pid, start_ticks): another process may have got its
        pid."""
        if self._hooks.take(record):
            return
        stat = process.stat_of(record.pid)
        if not record.exited and stat is not None and stat.start_ticks != record.start_ticks:
            log.warning("%s has ended: pid %d is another process now", record.name, record.pid)
            record = dataclasses.replace(record, exited=True)
        self._view.put(record)

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S if self._view.running() else IDLE_POLL_S):
                await self._wake.wait()

    async def _close(self) -> None:
        self._starts.cancel()
        for commands in self._commands.values():
            commands.close()
        self._desired.stop()
        self._requests.stop()
        self._renewal.stop()
        self._facts.stop()
        self._codes.stop()
        self._gpus.stop()
        self._checks.stop()
        if self._ends:
            await asyncio.wait(self._ends)
        self._report(self._loop.time())
        # while processes run, this is only a change of agents: the next one takes over the registration
        self._reporter.stop(give_back=not self._view.running())
        await asyncio.to_thread(self._reporter.join, 5.0)
        await asyncio.to_thread(self._requests.join, ENDS_WITHIN_S)

    # --- what happens to us ---

    def _on_wanted(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._stops.want(wanted)
        self._codes.want(wanted.by_run)
        self._run_folders.use({t.run_dir for node in wanted.by_run.values() for t in node.trainers})
        self._tell_news()

    def _on_exit(self, record: ProcessRecord) -> None:
        if self._hooks.take(record):
            self._wake.set()
            return
        known = self._view.processes.get(record.name)
        if known is None:
            self._early_exits[record.name] = record
        elif not known.exited:
            way = record.name.rpartition(".")[0]
            earlier = [task for task, of in self._ends.items() if of == way]
            task = asyncio.create_task(self._ended(record, earlier))
            self._ends[task] = way
            task.add_done_callback(self._ends.pop)

    async def _ended(self, record: ProcessRecord, earlier: Sequence[asyncio.Task[None]] = ()) -> None:
        # not in line behind the writes of a start, which are slow on a slow disk: what is not read now is never
        # reported
        patience_s = CLEAN_WITHIN_S if record.exit_code == 0 else ANSWERS_WITHIN_S
        end, last = exit_decoder.unread(record, f"{self._settings.node_folder} does not answer"), None
        try:
            end, last = await self._last_words.within(patience_s, partial(self._view.last_words, record)) or (end, last)
        except Exception:  # whatever it is: an exit that is never reported would leave its group waiting forever
            log.exception("what %s left behind cannot be read", record.name, extra=about(record.name))
            end = exit_decoder.unread(record, "")
        if (
            earlier
        ):  # what they left takes longer to read: reported alone, the echo of an end would be taken for its cause
            await asyncio.wait(earlier)
        if self._view.put(record, end, last):
            log.info(
                "%s ended: exit code %s, signal %s",
                record.name,
                record.exit_code,
                record.signal,
                extra=about(record.name),
            )
            self._exporter.ended(record)
            if record.exit_code != 0 and isinstance(parse(record.name), TrainerName):
                self._checks.failed()
        self._wake.set()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
        self._wake.set()

    def _on_warm(self, state: str) -> None:
        self._warm.take(state, self._loop.time())
        self._wake.set()

    def _on_reaches(self, reaches: Mapping[str, bool]) -> None:
        self._view.reaches |= reaches
        self._wake.set()

    def _on_trips(self, trips: Mapping[str, float]) -> None:
        self._view.trips |= trips  # reported with the next regular report

    def _on_term(self) -> None:
        if self._told_to_end is None:
            self._told_to_end = self._loop.time()
        self._wake.set()
        self._may_end()

    def _on_stopping(self) -> None:
        self._shim_stops = self._loop.time()
        self._wake.set()

    def _may_end(self) -> None:
        if self._told_to_end is None:
            return
        now = self._loop.time()
        if self._shim_stops is None:
            stays = now - self._told_to_end < TERM_PATIENCE_S and bool(self._view.running())
        else:  # as long as the shim waits for the hooks
            hooks = self._hooks.left() and now - self._shim_stops < 2 * self._settings.grace_s
            stays = hooks or bool(self._view.running())
        if not stays:
            self._ending.set()

    def _on_leaving(self, why: str) -> None:
        if why and not self._view.leaving:
            self._view.leaving = why
            log.warning("this node will be ended soon: %s", why)
            self._wake.set()

    def _on_facts(self, facts: tuple[Fact, ...]) -> None:
        for fact in facts:
            if fact not in self._known_facts:
                log.warning("%s: %s", fact.kind, fact.evidence)
        self._known_facts = facts
        self._wake.set()

    def _on_codes(self, here: Here) -> None:
        self._view.here = here
        self._wake.set()

    def _on_written(self, ticket: int) -> None:
        reach("agent.reported")
        for old in [old for old in self._tickets if old <= ticket]:
            observed = self._tickets.pop(old)
            self._reported_exits |= {
                str(TrainerName(t.run, t.group, t.generation, t.rank)) for t in observed.trainers if t.state == "exited"
            }
            self._reported_exits |= {
                f"lighthouse.{light.run}.{light.generation}"
                for light in observed.lighthouses
                if light.state == "exited"
            }
        self._wake.set()

    def _is_registered(self) -> bool:
        """Tells if this agent is the one of its node's name now: another one may be, once its lease is gone."""
        return self._reporter.standing.registered and self._reporter.standing.lease_held

    def _run_here(self) -> str:
        """Returns a run that has this node, or is about to; empty: none. From any thread."""
        wanted = next((run for run, node in self._wanted.by_run.items() if node.trainers), "")
        living = (parse(record.name) for record in list(self._view.processes.values()) if not record.exited)
        return wanted or next((name.run for name in living if name is not None), "")

    def _on_second(self, sentence: str) -> None:
        """Has the shim print the sentence: people read the shim's output, and seldom the agent's log."""
        self._in_background(self._say(sentence))

    async def _say(self, sentence: str) -> None:
        with contextlib.suppress(ShimRefused, ShimLost):  # an older shim refuses it; without a shim the agent ends
            await self._shim.ask("say", text=sentence)

    def _on_read(self, answer: tuple[int, Wanted]) -> None:
        self._read = answer
        self._tell_news()

    # --- a turn ---

    async def _turn(self) -> None:
        now = self._loop.time()
        awake = self._awake.look(now)
        news = await self._looks.look(now)
        for name in news or ():
            newest = self._view.progress[name].newest
            if newest is not None:
                self._exporter.progress(name, newest)
        limits = self._hang_limits()
        self._view.look_for_stops(limits, awake)
        if news is not None:
            self._view.look_for_hangs(limits, awake, self._nothing_written())
        self._gpus.running(self._view.ways())
        self._view.mesh = self._seat.holder
        wanted = self._wanted.by_run if self._reporter.standing.registered else {}
        stops = self._stops.of_our_own(self._reporter.standing.lease_held, self._looks.stalled, awake)
        actions = reconcile(wanted, list(self._view.processes.values()), self._settings.allocation)
        self._leave_alone(tuple(action.why for action in actions if isinstance(action, NotOurs)))
        for action in [*stops, *actions]:
            try:
                await self._do(action, now)
            except ShimRefused as error:
                log.warning("the shim refused %s: %s", action, error)
        starting = {name.run for name in self._view.announced}
        busy = starting | {way.partition(".")[0] for way in self._view.running_ways()}
        self._hooks.look(wanted, busy, self._shim_stops is not None)
        versions, running = self._view.here.versions, bool(self._view.running())
        if due := self._warm.due(wanted, versions, running=running, starting=bool(self._view.announced)):
            self._in_background(self._warm.renew(*due))
        if not self._looks.stalled:
            self._command(now)
        wants = any(node.trainers for node in self._wanted.by_run.values()) or bool(self._view.mesh)
        self._checks.look(not wants and self._told_to_end is None and not self._view.running(), awake)
        self._runs = frozenset(self._view.runs())
        if self._view.milestones() != self._last_report[0] or now - self._last_report[1] >= self._settings.report_s:
            self._report(now)
        self._report_health(now)
        folders = [self._view.processes[name].folder for name in self._view.running()]
        self._logs.look([*folders, str(self._settings.node_folder / "mesh")], now)

    async def _do(self, action: Action, now: float) -> None:
        match action:
            case Stop():
                await self._stops.carry_out(action, now)
            case Forget(name):
                if name in self._reported_exits:
                    await self._shim.ask("forget", name=name)
                    self._drop(name)
            case Forward(desired):
                if _way(desired) in self._view.debugged():  # the gate must not wait for it: it counts as silent
                    desired = dataclasses.replace(desired, gate="", gate_node="")
                if self._view.gates.get(_way(desired)) != (desired.gate, desired.gate_node):
                    await self._forward(desired)
            case Start(desired) if self._warm.is_awaited(desired, now):
                pass  # the next turn tries again
            case Start() if self._seat.holder:
                pass  # the next turn tries again, once the mesh has ended
            case Start(desired, ranks):
                self._starts.begin(_way(desired), self._start(desired, ranks), now)
            case NotOurs():
                pass  # the health report has it
            case StartLighthouse(light):
                request = launch.lighthouse_request(self._settings, light)
                self._starts.begin(request["name"], self._spawn(request), now)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _leave_alone(self, not_ours: tuple[str, ...]) -> None:
        for sentence in not_ours:
            if sentence not in self._not_ours:
                log.warning("%s", sentence)
        self._not_ours = not_ours

    def _nothing_written(self) -> bool:
        """Returns true if the disk that holds the ranks' progress records cannot be used."""
        own = str(self._settings.node_folder)
        return any(fact.kind in UNUSABLE and fact.subject == own for fact in self._known_facts)

    def _hang_limits(self) -> dict[str, HangSpec]:
        return {_way(trainer): _limits(trainer) for node in self._wanted.by_run.values() for trainer in node.trainers}

    def _drop(self, name: str) -> None:
        self._view.drop(name)
        self._exporter.dropped(name)
        self._stops.drop(name)
        self._commands.pop(name, None)
        self._reported_exits.discard(name)
        self._early_exits.pop(name, None)

    async def _forward(self, desired: TrainerDesired) -> int:
        reach("agent.before_forward")
        answer = await self._shim.ask(
            "forward",
            name=_way(desired),
            run=desired.run,
            group=desired.group,
            generation=desired.generation,
            gate=desired.gate,
            gate_node=desired.gate_node,
            **_pings(desired),
        )
        reach("agent.after_forward")
        self._view.gates[_way(desired)] = (desired.gate, desired.gate_node)
        return int(answer["port"])

    # --- starts ---

    async def _start(self, desired: TrainerDesired, ranks: tuple[int, ...]) -> None:
        names = frozenset(launch.rank_name(desired, rank) for rank in ranks)
        self._view.announced |= names
        try:
            if not await self._may_begin(desired):
                return
            try:
                begun = await self._hooks.begin(desired, lambda: self._wanted.has(desired))
                if begun is None or (begun[1] and not await self._may_begin(desired)):
                    return
                around = begun[0]
                self._warm.begins(desired)
                port = await self._forward(desired)
                await self._files.done(partial(launch.write_launches, self._settings, desired, f"127.0.0.1:{port}"))
            except StartFailed as failed:
                request = partial(launch.failed_request, self._settings, desired, ranks[0], failed)
                await self._spawn(await self._files.done(request))
                return
            for rank in ranks:
                await self._spawn(launch.trainer_request(self._settings, desired, rank, around))
            self._view.used(desired.store)
        finally:
            self._view.announced -= names

    async def _spawn(self, request: dict[str, Any]) -> None:
        await self._files.done(partial(os.makedirs, request["folder"], exist_ok=True))
        reach("agent.before_spawn")
        record = to_record((await self._shim.ask("spawn", **request))["process"])
        reach("agent.after_spawn")
        how = "warm" if record.warm else "cold"
        log.info("started %s: pid %d, %s", record.name, record.pid, how, extra=about(record.name))
        self._view.put(dataclasses.replace(record, exited=False, exit_code=None, signal=None))
        self._exporter.started(record)
        early = self._early_exits.pop(record.name, record)
        if early.exited:
            self._on_exit(early)
        self._wake.set()

    async def _may_begin(self, desired: TrainerDesired) -> bool:
        """Returns true if the generation is still desired after etcd holds the announced ranks and the registration.
        The watch may be late, and the supervisor may have given up this node."""
        ticket = self._report(self._loop.time(), then_read=True)
        await self._until(lambda: self._read[0] >= ticket or not self._wanted.has(desired))
        if self._read[0] >= ticket and self._read[1].has(desired) and self._wanted.has(desired):
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_AGAIN_S):
                await self._until(lambda: not self._wanted.has(desired))
        return False

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            news = self._news
            await news.wait()

    # --- commands and reports ---

    def _command(self, now: float) -> None:
        for node in self._wanted.by_run.values():
            for trainer in (each for each in node.trainers if not each.trainer.plain):
                for rank in trainer.ranks:
                    name = str(launch.rank_name(trainer, rank))
                    record = self._view.processes.get(name)
                    if record is None or record.exited:
                        continue
                    if name not in self._commands:
                        self._commands[name] = RankCommands(Path(record.folder))
                    self._commands[name].update(trainer, self._view.progress[name], now)

    def _report(self, now: float, then_read: bool = False) -> int:
        self._last_report = (self._view.milestones(), now)
        observed = self._view.observed()
        ticket = self._reporter.observed(observed, then_read)
        self._tickets[ticket] = observed
        return ticket

    def _report_health(self, now: float) -> None:
        standing = self._reporter.standing
        problems = (
            *self._wanted.problems,
            *self._view.problems(),
            *self._starts.problems(),
            *self._hooks.problems(),
            *self._not_ours,
        )
        facts = (*self._known_facts, *self._looks.facts(now))
        telling = (self._warm.state, problems, facts, standing.lease_held, standing.store_up)
        if telling == self._last_health[0] and now - self._last_health[1] < HEALTH_S:
            return
        self._last_health = (telling, now)
        own, free = self._settings, self._view.disk_free_bytes
        current: Health = machine.read(own.node, own.node_folder, free, self._warm.state, problems, facts)
        self._reporter.health(current)
        self._exporter.node(self._view, current, standing)


def _limits(desired: TrainerDesired) -> HangSpec:
    """Returns what bounds a step. A command that reports none has the silence that the run file allows."""
    if not desired.trainer.plain:
        return desired.hang
    return dataclasses.replace(desired.hang, at_most_s=desired.trainer.silent_after_s or math.inf)


def _pings(desired: TrainerDesired) -> dict[str, float]:
    """Returns how often the gate is asked, if it listens to each node of the group: several times within a heartbeat
    timeout."""
    return {"ping_every_s": desired.torchft.heartbeat_timeout_ms / 1000 / PINGS} if desired.nodes > 1 else {}


def _way(desired: TrainerDesired) -> str:
    return f"{desired.run}.{desired.group}.{desired.generation}"


async def _run(settings: Settings) -> None:
    shim = await ShimClient.connect(settings.node_folder / "shim.sock")
    await Agent(settings, shim).run()


def main(arguments: Sequence[str] | None = None) -> int:
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
    try:
        logged.set_up()
        failpoints.armed()
    except ValueError as error:
        log.error("%s", error)
        return 2
    if (problem := settings.unsafe()) is not None:
        log.error("%s", problem)
        return 2
    try:
        asyncio.run(_run(settings))
    except ShimLost as error:
        log.error("%s; this agent ends with its shim", error)
        return 1
    except (OSError, SecurityError) as error:
        log.error("cannot run the agent of node %s: %s", settings.node, error)
        return 1
    return 0
