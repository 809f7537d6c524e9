"""The shim's warm process, from which trainers are forked: its environment and code, and the start that it builds ahead
while this node is a spare."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from agents.agent import launch, surroundings
from agents.agent.shim_client import ShimClient, ShimLost, ShimRefused
from agents.agent.surroundings import StartFailed
from agents.shim.settings import Settings
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.spec import EnvSpec
from supervisor.wire.aside import Aside
from supervisor.wire.code_tree import Tree
from supervisor.wire.records import NodeDesired, TrainerDesired, encode

log = logging.getLogger("agents.agent")

PATIENCE_S = 25.0
"""Seconds that a start waits for a warm process that is importing. The import takes 4 to 8 s, and 25 s on a busy
machine. A cold start would import the same beside it and take as long."""

Surroundings = tuple[EnvSpec, CodeVersion | None]


class WarmProcess:
    """The agent's view of it, and requests to it."""

    def __init__(
        self, settings: Settings, shim: ShimClient, files: Aside, tree: Callable[[CodeVersion | None], Tree | None]
    ) -> None:
        """`tree` returns where a version of the code lies here."""
        self._settings, self._shim, self._files, self._tree = settings, shim, files, tree
        self.state = "off" if settings.cold else "starting"
        self._since = asyncio.get_running_loop().time()
        """When that began."""
        self._of: Surroundings = (EnvSpec(), None)
        """[env] and code of the newest start, or of the next one: it has that environment, or will."""
        self._ahead: TrainerDesired | None = None
        """The start for which it builds standbys, on a spare."""
        self._ahead_holds = False
        """False where it may still know of another one."""

    def take(self, state: str, now: float) -> None:
        """Takes what the shim says of it."""
        if state != self.state:
            self.state, self._since = state, now

    def is_awaited(self, desired: TrainerDesired, now: float) -> bool:
        """Returns true if this start must wait until it is there. In another environment it would begin again first: such
        a start is cold."""
        begins = self.state == "starting" and now - self._since < PATIENCE_S
        return begins and not desired.trainer.command and (desired.env, desired.code) == self._of

    def begins(self, desired: TrainerDesired) -> None:
        """Takes the newest start, of which the shim gives it the environment."""
        self._of = (desired.env, desired.code)

    def due(
        self, wanted: Mapping[str, NodeDesired], versions: Collection[str], *, running: bool, starting: bool
    ) -> tuple[Surroundings | None, TrainerDesired | None] | None:
        """Returns what to `renew` it with: the environment and code of the next start here, once that code lies here
        (`versions`), and while this node is a spare the start to build. None: nothing has changed, or a start is under
        way. `running`: a rank runs here."""
        runs = {run for run, each in wanted.items() if each.trainers}
        spare = not runs and any(each.standby is not None for each in wanted.values())
        of, ahead = self._of, self._ahead if spare else None  # until the code of its start lies here
        lies = [each for each in wanted.values() if each.code is not None and each.code.version in versions]
        here = [*lies, *(each for each in wanted.values() if each.code is None and each.standby is not None)]
        node = max(here, key=lambda each: len(each.trainers), default=None)
        if node is not None and not any(trainer.trainer.command for trainer in node.trainers):
            # a record without a start says nothing of its environment
            start = node.trainers[0] if node.trainers else node.standby
            of, ahead = (start.env if start is not None else of[0], node.code), node.standby if spare else None
        if self._ahead is not None and self._ahead.run in runs:
            self._ahead, self._ahead_holds = None, False  # a start comes, which uses what was built
        idle = not (runs or running)
        old = idle and not self._ahead_holds  # no start came after all, or an agent before this one has asked for it
        if starting or ((of, ahead) == (self._of, self._ahead) and not old):
            return None
        in_what = of if of != self._of or ahead is not None else None
        self._of, self._ahead, self._ahead_holds = of, ahead, True
        return in_what, ahead

    async def renew(self, of: Surroundings | None, ahead: TrainerDesired | None) -> None:
        """Asks for what was due. `of`: None: the environment and code that it has."""
        try:
            if of is not None:
                env, code = of
                around = await self._files.done(lambda: surroundings.fields(env, self._settings.node, self._tree(code)))
                await self._shim.ask("warm", **around)
            start = "" if ahead is None else encode(launch.ahead(self._settings, ahead)).decode()
            if ahead == self._ahead:  # else a start has come meanwhile, or another one is to be built
                await self._shim.ask("ahead", launch=start)
        except (ShimRefused, ShimLost, StartFailed, OSError) as error:
            # an older shim refuses it: the next start is cold
            log.info("the warm process is not renewed: %s", error)
