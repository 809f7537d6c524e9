"""Serves a page, as a supervisor does, of a run with real decisions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry

from supervisor.core.model.observed import ControlView, StuckView
from supervisor.core.model.seats import Seat
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.web.server import Server, serve, url_of
from supervisor.shell.web.watcher import Page
from supervisor.wire import keys
from supervisor.wire.records import Account, encode
from supervisor.wire.security import Security
from tests.helpers.told import ToldWorld

TRACE = """Traceback (most recent call last):
  File "train.py", line 211, in train_step
    loss = self.forward(batch)
RuntimeError: CUDA error: an illegal memory access was encountered <b>&amp;"""


class Site:
    """One world, and one page of it at a time."""

    def __init__(self, world: ToldWorld, port: int = 0) -> None:
        self.world = world
        self._began = time.time() - world.now
        self.page = Page(world.store, wall=self.wall)
        world.after_step = self.look  # type: ignore[method-assign]
        self.server: Server = serve(CollectorRegistry(), self.page, "127.0.0.1", port, Security())
        self.url = url_of(self.server)

    def wall(self) -> float:
        """The world's own time, as if it had begun when the test did."""
        return self._began + self.world.now

    def look(self) -> None:
        """Does the work of the page's own thread; here a step is a look, so that the history has them all."""
        self.page._learn("run", self._began)
        self.page.look(Mirror(self.world.store.list(keys.PREFIX)))

    def live(self) -> None:
        """Makes the page look at the world from now on, as a supervisor's does."""
        self.look()
        self.world.after_step = lambda: None  # type: ignore[method-assign]
        self.page.start()

    def close(self) -> None:
        self.page.stop()
        self.server.shutdown()
        self.server.server_close()


def trained() -> ToldWorld:
    """A world that has trained: four groups of four ranks."""
    world = ToldWorld(groups=4, spares=2, ranks=4)
    world.lead()
    return world.bring_up()  # type: ignore[return-value]


SECONDS = {
    "productive": 1017.4, "allocate": 28.0, "start": 17.2, "quorum": 9.3, "heal": 6.1, "checkpoint": 4.4, "detect": 2.0, "lost_step": 1.7,
}  # fmt: skip
"""Seconds of all groups, as a leader adds them up."""


def hurt(site: Site) -> None:
    """Trains with failures: a rank crashes and comes back; a node is lost and its group moves; a rank fails, and comes
    back as we look."""
    w = site.world
    w.train(120)
    w.save(0, step=w.step)
    w.round(0.1)
    w.crash(1, rank=2)
    w.round(0.2)
    w.train(w.step + 3)
    w.recover(1, step=w.step)
    w.train(w.step + 60)
    w.hear(2, "silent")
    w.lapse(w.group(2).first_node)
    w.round(0.1)
    w.train(w.step + 4)
    w.recover(2, step=w.step)
    w.train(w.step + 90)
    w.store.put(keys.account("run"), encode(Account(step=w.step, seconds=SECONDS)))
    w.fail(3, rank=1, error=TRACE.splitlines()[-1], trace=TRACE)
    w.round(0.2)
    w.train(w.step + 5)


def paused(site: Site) -> None:
    """Pauses the run, as a person does; then a rank crashes."""
    w = site.world
    w.train(30)
    w.control = ControlView(paused=True, because="the network is mended")
    w.round(0.1)
    w.crash(0)
    w.round(1.0)


def stuck(site: Site) -> None:
    """Makes every group hang in a collective, through the fault of none."""
    w = site.world
    w.train(30)
    for group in range(4):
        w.report(group, 0, commits=1, step=30, stuck=StuckView(activity="quorum", activity_s=61.0, bound_s=30.0))
    w.round(60.0)
    site.look()


def halted(site: Site) -> None:
    w = site.world
    w.train(30)
    for group in range(4):
        w.fail(group, error="ValueError: bad batch in shard 17")
    for _ in range(6):
        w.round(1.0)


def many(count: int = 300) -> ToldWorld:
    """A run with `count` groups, each a tile, of which a few are not well. It is written once: decisions for all of
    them would take minutes."""
    world = ToldWorld(groups=4, spares=2, ranks=8)
    world.lead()
    world.bring_up()
    world.train(3)
    spec = world.spec
    world.spec = replace(spec, groups=replace(spec.groups, count=count))
    one = world.group(0)
    groups = {g: replace(one, group=g, seats=(Seat(f"m{g}"),)) if g >= 4 else world.group(g) for g in range(count)}
    groups[17] = replace(groups[17], phase="fencing", incident="i9")
    groups[230] = replace(groups[230], phase="starting", generation=4)
    world.memory = replace(world.memory, groups=groups)
    node = world.nodes[one.first_node]
    for g in range(4, count):
        world.nodes[f"m{g}"] = replace(node, name=f"m{g}", ranks=tuple(replace(r, group=g) for r in node.ranks))
    world.lead_again()
    return world


@contextlib.contextmanager
def site(world: ToldWorld, port: int = 0) -> Iterator[Site]:
    made = Site(world, port)
    try:
        yield made
    finally:
        made.close()
