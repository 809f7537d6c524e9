"""Ends the node's processes: by TERM, and by KILL once their grace has passed or at once. Some the agent ends on its own:
gates that are frozen, and trainers that neither etcd nor a gate reaches."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any

from agents.agent.desired import Wanted
from agents.agent.file_poller import FrozenGates
from agents.agent.isolation import CutOff
from agents.agent.names import about, parse
from agents.agent.node_view import View
from agents.agent.reconcile import Stop
from agents.agent.shim_client import ShimClient
from agents.shim.settings import Settings
from supervisor.core.model.spec import PolicySpec
from supervisor.shell.failpoints import reach

log = logging.getLogger("agents.agent")


class Stops:
    """Sends each process TERM once and KILL once."""

    def __init__(self, settings: Settings, shim: ShimClient, view: View, ask: Callable[..., Any]) -> None:
        """`ask` reads and writes files aside, as CutOff needs it."""
        self._shim, self._view = shim, view
        self._graces: dict[str, float] = {}
        """Run -> its `policy.term_grace_s`."""
        self._terms: dict[str, float] = {}
        """When TERM was sent to each process; KILL follows after the grace."""
        self._killed: set[str] = set()
        self._frozen = FrozenGates(settings.node_folder)
        self._cut_off = CutOff(settings.node_folder / "cut-off.json", ask)

    def want(self, wanted: Wanted) -> None:
        """Takes the trainers that are desired here."""
        trainers = [trainer for node in wanted.by_run.values() for trainer in node.trainers]
        self._graces |= {trainer.run: trainer.term_grace_s for trainer in trainers}
        self._cut_off.wanted(trainers)

    def of_our_own(self, lease_held: bool, looks_stall: bool, awake: float) -> list[Stop]:
        """Returns what must end without an order. `looks_stall`: the disk of the ranks' files does not answer."""
        still = self._view.still_gates(awake, not looks_stall)
        frozen = [
            Stop(name, f"the gate is frozen: it has not touched its file for {still_s:.1f} s", at_once=True)
            for name, still_s in self._frozen.look(still, awake).items()
        ]
        ways = self._view.running_ways()
        lost = self._cut_off.look(ways, lease_held, self._view.reaches, awake)
        return [
            *frozen,
            *(Stop(name, cut.why, cut_off_s=cut.limit_s) for way, cut in lost.items() for name in ways[way]),
        ]

    async def carry_out(self, stop: Stop, now: float) -> None:
        """Sends the signal that is due, if any. Raises ShimRefused and ShimLost."""
        parsed = parse(stop.name)
        assert parsed is not None
        if stop.name in self._killed:
            return
        sent = self._terms.get(stop.name)
        grace_s = self._graces.get(parsed.run, PolicySpec().term_grace_s)
        beyond_term = self._view.beyond_term(stop.name)
        if stop.at_once or beyond_term:
            why = f"{stop.why}; {beyond_term}" if beyond_term else stop.why
            log.warning("killing %s: %s", stop.name, why, extra=about(stop.name))
            await self._kill(stop, why)
        elif sent is None:
            self._terms[stop.name] = now
            log.info("ending %s: %s", stop.name, stop.why, extra=about(stop.name))
            await self._signal(stop, signal.SIGTERM, stop.why)
        elif now - sent >= grace_s:
            log.warning("%s did not end within its grace after TERM: killing it", stop.name, extra=about(stop.name))
            await self._kill(stop, f"it did not end within {grace_s:g} s of TERM: {stop.why}")

    async def _kill(self, stop: Stop, why: str) -> None:
        self._killed.add(stop.name)
        await self._signal(stop, signal.SIGKILL, why)

    async def _signal(self, stop: Stop, number: int, why: str) -> None:
        reach("agent.before_signal")
        await self._shim.ask("signal", name=stop.name, signal=int(number), why=why, cut_off_s=stop.cut_off_s)

    def drop(self, name: str) -> None:
        """Forgets a process whose record is gone."""
        self._terms.pop(name, None)
        self._killed.discard(name)
