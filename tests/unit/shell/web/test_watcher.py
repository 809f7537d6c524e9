"""Facts that only repeated looks can show: how long a state has lasted."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import Grant
from supervisor.ports.errors import Retryable
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.web import watcher
from supervisor.shell.web.calls import AWAY_S, STILL_S
from supervisor.shell.web.history import Since
from supervisor.shell.web.watcher import UNREAD_EVERY_S, Page
from supervisor.wire import keys
from supervisor.wire.records import Cordon, Registration, encode
from tests.helpers.told import ToldWorld


class Watcher:
    """Looks at a world as the page's thread does, by a clock of the test's."""

    def __init__(self, world: ToldWorld, alarms: tuple[str, ...] = ()) -> None:
        self.world, self.at = world, 1_700_000_000.0
        self.page = Page(world.store, wall=lambda: self.at, alarms=lambda: alarms)

    def up(self, after_s: float = 0.0) -> dict[str, Any]:
        """The page's call for a person, `after_s` later. The page looks as often as it does while no one reads it."""
        end = self.at + after_s
        with self.page.reading("") as feed:
            while True:
                self.page.look(Mirror(self.world.store.list(keys.PREFIX)))
                if self.at >= end:
                    found: dict[str, Any] = feed.newest["get_up"]
                    return found
                self.at = min(end, self.at + UNREAD_EVERY_S)


@pytest.fixture
def world() -> ToldWorld:
    made = ToldWorld(groups=2, spares=1)
    made.lead()
    made.bring_up()
    made.train(5)
    return made


def test_since() -> None:
    since = Since()
    assert since.lasts_s(10.0) == float("inf"), "nobody has looked yet"
    since.look(True, 10.0)
    assert since.lasts_s(11.0) == float("inf"), "it may have been so for long"
    since.look(False, 12.0)
    assert since.lasts_s(13.0) == 0.0
    since.look(True, 14.0)
    since.look(True, 15.0)
    assert since.lasts_s(16.0) == 2.0


def test_a_change_of_leaders_calls_nobody_and_none_for_a_minute_does(world: ToldWorld) -> None:
    watcher = Watcher(world)
    assert watcher.up(after_s=20.0)["level"] == "no"
    world.store.commit({}, [keys.LEADER])
    assert watcher.up(after_s=AWAY_S / 2)["level"] == "no"
    up = watcher.up(after_s=AWAY_S)
    assert up["level"] == "now"
    assert up["why"][0].startswith("no supervisor leads")
    world.lead()
    assert watcher.up()["level"] == "no"


def test_a_lighthouse_that_is_away_for_a_minute_calls(world: ToldWorld) -> None:
    watcher = Watcher(world)
    assert watcher.up(after_s=20.0)["level"] == "no"
    world.mute()
    world.nodes["host"] = replace(world.nodes["host"], registered=False)
    world.round(1.0)
    assert "no lighthouse is open" in watcher.up(after_s=AWAY_S / 2)["word"]
    up = watcher.up(after_s=AWAY_S)
    assert up["level"] == "now"
    assert up["why"][0].startswith("the lighthouse has not been open")


def test_a_run_that_stands_still_calls_when_the_alert_does(world: ToldWorld) -> None:
    watcher = Watcher(world)
    assert watcher.up(after_s=STILL_S / 2)["level"] == "no"
    world.train(6)
    assert watcher.up(after_s=STILL_S - UNREAD_EVERY_S)["level"] == "no"
    up = watcher.up(after_s=2 * UNREAD_EVERY_S)
    assert up["level"] == "now"
    assert up["why"][0].startswith("no step for more than 15 min")


def test_a_run_that_waits_for_a_person_in_the_debugger_does_not_call(world: ToldWorld) -> None:
    watcher = Watcher(world)
    assert watcher.up(after_s=20.0)["level"] == "no"
    world.report(0, commits=1, step=5, debugging=True)
    world.report(1, commits=1, step=5, phase="waiting")
    world.round(1.0)
    assert watcher.up(after_s=2 * STILL_S)["level"] == "no"
    for group in (0, 1):
        world.report(group, commits=1, step=5)
    world.round(1.0)
    assert watcher.up()["level"] == "no", "the count begins again"
    assert watcher.up(after_s=STILL_S)["level"] == "now"


def test_a_run_that_never_steps_calls_once_it_could(world: ToldWorld) -> None:
    queued = ToldWorld(groups=2, spares=1)
    queued.lead()
    queued.host()
    queued.round()
    watcher = Watcher(queued)
    up = watcher.up(after_s=2 * STILL_S)
    assert up["level"] != "now", "it waits in the queue"
    assert not any("spare" in why for why in up["why"]), "no node is there yet"
    queued.start_up()
    assert watcher.up(after_s=STILL_S / 2)["level"] != "now"
    assert watcher.up(after_s=STILL_S)["level"] == "now"


def test_an_alarm_of_etcd_calls(world: ToldWorld) -> None:
    up = Watcher(world, alarms=("etcd is full: etcdctl defrag",)).up()
    assert (up["level"], up["why"]) == ("now", ["etcd is full: etcdctl defrag"])


def test_an_etcd_that_goes_away_as_the_page_begins_to_follow_it_is_said_to_be_away(world: ToldWorld) -> None:
    """Its own thread reads all again before it watches. Until that answer comes, a reader has an older picture."""
    page = Page(world.store)
    page.begin()
    world.store.away = True
    page.start()
    try:
        with page.reading("") as feed:
            told = eventually(lambda: feed.newest.get("store_since"), 10, "it says so")
            assert abs(time.time() - told) < 60
            assert feed.newest["numbers"]["step"] == 5, "with what held then"
            world.store.away = False
            eventually(lambda: not feed.newest["store_since"], 10, "it is back")
    finally:
        page.stop()


def test_a_node_is_scraped_once_an_engine_has_given_it(world: ToldWorld) -> None:
    """Its agent may register before the leader reads the engine's list."""
    about = {"address": "10.0.0.9", "role": "trainer", "allocation": "", "slots": 1, "agent_pid": 1, "version": "1"}
    registered = Registration(node="n9", metrics_port=9000, **about)  # type: ignore[arg-type]
    world.store.put(keys.registration("n9"), encode(registered))
    page = Page(world.store)
    mirror = page.begin()
    page.look(mirror)
    assert "n9" not in {target.instance for target in page.targets}
    grant = Grant(key="run-a9", state="granted", nodes=("n9",))
    mirror.wrote({keys.grant("run", "run-a9"): encode(grant)}, mirror.revision + 1)
    page.look(mirror)
    assert "n9" in {target.instance for target in page.targets}


def test_text_that_is_no_utf_8_or_turns_the_direction_is_shown_with_a_sign_in_its_place(world: ToldWorld) -> None:
    host = world.nodes[world.group(0).first_node].machine
    cordon = Cordon(host=host, why="caf\udce9 \u202egnp.exe\u2066", by="me@here", at_unix_s=1.0)
    world.store.put(keys.cordon(host), encode(cordon))
    page = Page(world.store)
    page.begin()
    with page.reading("") as feed:
        page.begin()
        told = feed.whole()
    assert told is not None
    assert "caf\ufffd \ufffdgnp.exe\ufffd" in told.decode()


def test_it_goes_on_after_an_error_that_nobody_foresaw(
    world: ToldWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "AFTER_A_BUG_S", 0.01)
    page = Page(world.store)
    page.begin()
    begin, look = page.begin, page.look
    failures = iter(
        (RuntimeError("a bug"), RuntimeError("a bug"), Retryable("etcd is away"))
    )  # then another bug, in the code that reports it
    bugs = iter((RuntimeError("a bug"),))

    def begins() -> Mirror:
        for error in failures:
            raise error
        return begin()

    def looks(*told: Any) -> None:
        for error in bugs:
            raise error
        look(*told)

    monkeypatch.setattr(page, "begin", begins)
    monkeypatch.setattr(page, "look", looks)
    page.targets = None
    page.start()
    try:
        eventually(lambda: page.targets is not None, 10)
    finally:
        page.stop()
    assert [r.getMessage() for r in caplog.records if r.exc_info] == ["the page is not fed"] * 2, "each is said once"
