"""A process killed between any two steps of the supervisor's loop, of the agent's, or of a lighthouse's hand-over
neither loses nor repeats an action. These are a few rounds of the long lane (`make killpoints`), each failpoint at
least once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.shell.failpoints import NAMES
from tests.helpers.etcd import running
from tests.nightly.plans import WAYS, Plan, Scenario, plan
from tests.nightly.rounds import Lanes

NOT_AT_A_START = {"fencing", "engine.before_release", "engine.after_release", "agent.before_signal"}
"""No allocation is released, no process is ended and nothing is fenced while a run starts."""

WHEN: dict[Scenario, list[str]] = {
    "start": [n for n in NAMES if n not in NOT_AT_A_START],
    "allocation": ["journaled", "engine.after_acquire", "engine.before_release", "engine.after_release"],
    "restart": ["agent.before_signal"],
    "lighthouse": ["committed", "agent.after_forward", "gate.listening", "gate.opening", "gate.open"],
    "node": ["fencing"],
}
ROUNDS = [(scenario, name) for scenario, names in WHEN.items() for name in names]
EACH = [pytest.param(*round_, marks=[pytest.mark.long] if number % 24 else []) for number, round_ in enumerate(ROUNDS)]
"""A few rounds are in the fast lane; `make killpoints` plays them all too, and many times."""


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    """One world for all rounds, since each would take longer to start than it lasts."""
    folder = tmp_path_factory.mktemp("rounds")
    with running(folder / "etcd") as server:
        made = Lanes(folder, server)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.etcd
@pytest.mark.parametrize(("scenario", "name"), EACH, ids=lambda x: x)
def test_killed_at(scenario: Scenario, name: str, lanes: Lanes) -> None:
    seed = ROUNDS.index((scenario, name))
    way = next(w for w in WAYS[name] if w.scenario == scenario)
    assert lanes.play(Plan(seed, name, way.least, way, victim=1, whole_gate=True)), f"nobody was killed at {name}"


def test_each_failpoint_can_be_reached_and_is() -> None:
    assert set(WAYS) == set(NAMES)
    assert {name for _, name in ROUNDS} == set(NAMES)
    assert {name for name, ways in WAYS.items() if all(w.scenario != "start" for w in ways)} == NOT_AT_A_START


def test_a_seed_says_all() -> None:
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]
    assert {plan(seed).failpoint for seed in range(500)} == set(NAMES)
    assert plan(7, "gate.open", "lighthouse").way.scenario == "lighthouse"
    with pytest.raises(ValueError, match=r"no way to reach failpoint 'gate\.open' in scenario 'trainer'"):
        plan(7, "gate.open", "trainer")
