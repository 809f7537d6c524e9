"""The code of a start: it begins only where that lies, and keeps its version."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import invariants
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from tests.unit.core.world import World

ONE, TWO = (CodeVersion(version=digit * 64, folder="/home/me/code") for digit in "12")


class Coded(World):
    """A world whose code is `code`, and lies on the nodes that say so."""

    code: CodeVersion | None = ONE

    def observed(self) -> Observed:
        return replace(super().observed(), code=self.code)

    def lies(self, *numbers: int, code: CodeVersion = ONE) -> None:
        for number in numbers:
            self.node(number, codes=(code.version,))


def arrived(groups: int = 2, spares: int = 0) -> Coded:
    """A world whose nodes and gate are there, but nothing was started."""
    w = Coded(groups=groups, spares=spares)
    w.host()
    w.round()
    for number in range(1, groups + spares + 1):
        w.bring(number)
        w.node(number, codes=())
    w.open_gate()
    return w


def trained(groups: int = 2, spares: int = 0) -> Coded:
    w = arrived(groups, spares)
    w.lies(*range(1, groups + spares + 1))
    w.round()
    for group in range(groups):
        w.commit(group)
    w.round(1.0)
    w.open_gate()
    assert [g.phase for g in w.memory.groups.values()] == ["running"] * groups
    return w


def phases(w: World) -> list[str]:
    return [g.phase for g in w.memory.groups.values()]


def test_nothing_starts_before_the_code_lies_there_however_late_it_is() -> None:
    w = arrived()
    w.lies(1)
    assert w.verbs(after=2 * w.spec.policy.allocation_timeout_s) == [], "its run is not given up for it"
    lacks = Reason.of(Code.LACKS_CODE, node="n2", more=0, why="", knows=True)
    there = Reason.of(Code.NODES_THERE, free=1, of=2)
    assert w.last.waits == (Reason.of(Code.AND, reason=there, note=lacks),)
    w.lies(2)
    w.round()
    assert phases(w) == ["starting", "starting"]
    assert [g.code for g in w.memory.groups.values()] == [ONE, ONE]


def test_without_code_nothing_is_waited_for() -> None:
    w = arrived()
    w.code = None
    w.round()
    assert phases(w) == ["starting", "starting"]
    assert w.group().code is None


def test_a_new_version_is_of_the_next_start_and_the_others_train_on() -> None:
    w = trained()
    w.code = TWO
    assert w.verbs(after=10.0) == [], "what runs goes on"
    assert [g.code for g in w.memory.groups.values()] == [ONE, ONE]
    w.crash(0)
    w.admit(0)
    assert "start" not in [verb for _ in range(3) for verb in w.verbs(after=1.0)]
    assert w.waiting(Code.LACKS_CODE) == [{"group": 0, "node": "n1", "more": 0, "why": "", "knows": True}]
    w.lies(1, code=TWO)
    w.recover(0)
    assert [(g.code, g.generation) for g in w.memory.groups.values()] == [(TWO, 2), (ONE, 1)]


def test_the_incident_names_the_code_that_crashed() -> None:
    w = trained()
    w.code = TWO
    w.lies(1, code=TWO)
    w.crash(0)
    w.recover(0)
    assert w.incident.code == ONE
    w.crash(0)
    w.recover(0)
    assert w.incident.code == TWO


def test_a_fetch_that_fails_is_no_failure_of_the_group_or_its_node() -> None:
    w = trained(groups=2, spares=1)
    w.code = TWO
    why = "code 222222222222: No space left on device (/n)"
    for number in (1, 2, 3):
        w.node(number, codes=(), code_error=why)
    w.crash(0)
    w.admit(0)
    for _ in range(5):
        w.round(w.spec.policy.start_timeout_s)
        w.commit(1, step=w.rounds)
    assert len(w.incidents) == 1, "the crash alone"
    assert w.memory.cordons == {}
    assert {scope: len(draws) for scope, draws in w.memory.spent.items()} == {"restart:0": 1}
    assert w.waiting(Code.LACKS_CODE) == [{"group": 0, "node": "n1", "more": 0, "why": why, "knows": True}]
    assert w.group(1).phase == "running"


def test_a_spare_that_lacks_it_is_not_taken_and_waited_for_if_there_is_no_other() -> None:
    w = trained(groups=1, spares=2)
    w.code = TWO
    w.lies(3, code=TWO)
    w.hear(0, "gone")
    w.lapse("n1")
    w.recover(0)
    assert w.group().first_node == "n3", "n2 would come first, and has other code"

    w = trained(groups=1, spares=1)
    w.code = TWO
    w.hear(0, "gone")
    w.lapse("n1")
    w.round()
    w.admit(0)
    w.round(1.0)
    w.round(w.spec.policy.backoff_max_s)
    assert w.group().phase == "placing"
    assert w.waiting(Code.LACKS_CODE)
    w.lies(2, code=TWO)
    w.recover(0)
    assert (w.group().first_node, w.group().code) == ("n2", TWO)


def test_a_full_disk_that_takes_no_code_is_not_waited_for() -> None:
    w = trained(groups=2, spares=1)
    w.code = TWO
    why = "code 222222222222: No space left on device (/n)"
    w.node(3, codes=(), code_error=why, facts={"disk_full": "/n is full"})
    w.hear(0, "gone")
    w.lapse("n1")
    w.admit(0)
    w.round(w.spec.policy.backoff_max_s)
    assert not w.waiting(Code.LACKS_CODE)
    assert [each["allocation"] for each in w.waiting(Code.PENDING)] == ["run-a4"], "another node is asked for"


def test_an_agent_that_knows_no_code_is_named() -> None:
    w = arrived(groups=1)
    w.node(1, codes=None)
    w.round(1.0)
    assert w.waiting(Code.LACKS_CODE) == [{"node": "n1", "more": 0, "why": "", "knows": False}]


def test_a_placement_without_the_code_breaks_an_invariant() -> None:
    w = arrived(groups=1)
    before = w.memory
    w.lies(1)
    w.round()
    w.code = TWO
    found = invariants.violations(before, w.memory, w.observed(), w.spec)
    assert found == ["I20: group 0 is placed on n1, which has not all of its code"]
