"""The begin, the end and the duration of an incident: the same answer for all that print them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.model.engines import TRAITS
from supervisor.core.model.kinds import Kind
from supervisor.core.report.decision_diff import Answer, compare
from supervisor.core.report.durations import incident_s, wall_clock
from tests.unit.core.world import World

LOCAL_WORD_S = TRAITS["local"].word_s


def restarted(**about: Any) -> World:
    """A world in which group 0 was ended by a signal and is started again; the others train on."""
    w = World(**about).bring_up()
    w.crash(0)
    w.round(0.5)
    w.start_again(0)
    return w


# --- recovered: the first step that it committed with the others ---


def test_a_step_of_its_own_is_no_recovery_while_others_train() -> None:
    w = restarted()
    w.commit(0, step=10, participants=1, healed=False)
    w.round(1.0)
    assert (w.group(0).phase, w.group(0).incident) == ("running", "i1")
    assert (w.incident.state, w.incident.recovered) == ("acting", None)
    w.commit(0, step=11, participants=2, healed=False)
    w.round(1.0)
    assert (w.incident.state, w.incident.recovered) == ("recovered", w.now)
    assert w.group(0).incident == ""


@pytest.mark.parametrize(
    "about",
    [
        {"participants": 2, "healed": False},
        {"participants": 1, "healed": True},  # one that heals is in the step, and not among those who made it
        {"participants": 0, "healed": False},
        {"participants": 1, "healed": None},
    ],
    ids=["together", "healed", "an agent that does not say", "an input of an older version"],
)
def test_the_first_step_that_may_be_with_the_others_is_the_recovery(about: dict[str, Any]) -> None:
    w = restarted()
    w.commit(0, step=10, **about)
    w.round(1.0)
    assert (w.incident.state, w.incident.recovered) == ("recovered", w.now)


def test_where_no_other_group_trains_its_own_step_is_the_recovery() -> None:
    alone = restarted(groups=1)
    alone.commit(0, step=10, participants=1, healed=False)
    alone.round(1.0)
    assert alone.incident.state == "recovered"
    w = restarted()
    w.commit(0, step=10, participants=1, healed=False)
    w.round(1.0)
    w.crash(1)
    w.round(1.0)
    w.round(1.0)
    assert w.incidents["i1"].state == "recovered", "the other one has failed, so there is none to step with"
    assert w.incidents["i2"].state == "acting"


# --- its first sign ---


def test_an_incident_lasts_from_its_first_sign() -> None:
    """A SIGTERM from an unknown sender may be the engine's. The wait for its answer is the incident's time too."""
    w = World().bring_up()
    w.crash(0, 15, told="")
    w.round()
    assert not w.incidents
    began = w.now
    w.round(LOCAL_WORD_S + 0.1)
    assert w.incident.took_s == pytest.approx(LOCAL_WORD_S + 0.1)
    w.recover(0)
    assert incident_s(w.incident) == pytest.approx(w.now - began)


def test_a_lost_node_lasts_from_its_last_sign_of_life() -> None:
    """A lease lapses when nothing was heard for all of it."""
    w = World().bring_up()
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    w.stable = 0.0  # etcd was away: leases that lapse now may be no sign of their nodes
    w.round()
    began = w.now - w.spec.policy.node_lease_s
    w.stable = 1e6
    w.hear(0, "silent")
    w.round(3.0)
    assert w.incident.kind == Kind.NODE_LOST
    assert w.incident.took_s == pytest.approx(w.spec.policy.node_lease_s + 3.0)
    w.recover(0)
    assert incident_s(w.incident) == pytest.approx(w.now - began)


def test_of_an_end_that_is_seen_at_once_nothing_is_added() -> None:
    w = World().bring_up()
    w.crash(0)
    w.round()
    assert (w.incident.took_s, incident_s(w.incident)) == (0.0, None)
    assert incident_s(w.incident, now=w.now + 7.0) == pytest.approx(7.0)


def test_how_long_it_had_lasted_is_no_other_answer() -> None:
    """An older version's decision is made again: it did not count so, and did the same."""
    w = World().bring_up()
    w.crash(0)
    then = Answer((), w.round().incidents)
    today = Answer((), tuple(replace(i, took_s=0.61) for i in then.incidents))
    assert compare(then, today).verdict == "words"


def test_what_the_run_clock_does_not_have_is_counted_once() -> None:
    w = World().bring_up()
    w.crash(0)
    w.round()
    w.recover(0)
    i, recovered = w.incident, w.incident.recovered
    assert recovered is not None
    stood = ((i.opened - 1.0, 500.0), (i.opened, 60.0), (recovered, 500.0))
    assert incident_s(i, stood) == pytest.approx(recovered - i.opened + 60.0)
    assert wall_clock(i.opened, ((0.0, 100.0), (i.opened + 1.0, 7.0))) == i.opened + 100.0
