"""The nodes of a pool are lent to one run at a time (I23), and taken back with what the engine says of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.model.memory import AllocationMemory
from supervisor.core.model.observed import Grant
from supervisor.core.remediation.lending import Asked, Held, Pool, lend
from tests.helpers.reasons import STARTS


def of_pool(number: int, **about: object) -> Held:
    given = Grant(key=f"lab-a{number}", state="granted", nodes=(f"n{number}",), engine_id=f"local:{number}")
    return replace(Held(grant=given, host=f"n{number}"), **about)  # type: ignore[arg-type]


def lab(*held: Held, **about: object) -> Pool:
    grants = {each.grant.key: each.grant for each in held}
    return replace(Pool(name="lab", grants=grants, held={each.grant.key: each for each in held}), **about)  # type: ignore[arg-type]


def asks(run: str, number: int, grant: Grant | None = None, **about: object) -> Asked:
    wanted = AllocationMemory(key=f"{run}-a{number}", state="wanted", since=1.0, reason=STARTS)
    return Asked(run=run, allocation=replace(wanted, **about), grant=grant)  # type: ignore[arg-type]


def has(run: str, number: int, of: int, **about: object) -> Grant:
    given = Grant(
        key=f"{run}-a{number}", state="granted", nodes=(f"n{of}",), engine_id=f"lab/lab-a{of}", through=f"lab-a{of}"
    )
    return replace(given, **about)  # type: ignore[arg-type]


def test_each_request_gets_a_node_in_the_order_of_switches_and_names() -> None:
    pool = lab(of_pool(10, switch="s1"), of_pool(2, switch="s1"), of_pool(1, switch="s2"))
    found = lend(pool, [asks("run", 1), asks("run", 2), asks("run", 3)], {})
    assert [found[f"run-a{n}"] for n in (1, 2, 3)] == [has("run", 1, 2), has("run", 2, 10), has("run", 3, 1)]


def test_the_oldest_request_comes_first_whatever_the_runs_are_called() -> None:
    found = lend(lab(of_pool(1)), [asks("a", 1, since=2.0), asks("b", 1, since=1.0)], {})
    assert found["b-a1"] == has("b", 1, 1)
    assert (found["a-a1"].state, found["a-a1"].exhausted, found["a-a1"].engine_id) == ("pending", True, "lab")
    assert found["a-a1"].reason == "pool lab has no free node for it (nodes: 1; run b has 1)"


def test_a_node_that_comes_is_waited_for_by_as_many_as_come() -> None:
    pool = lab(of_pool(1, usable=False, comes=True), of_pool(2, runs=frozenset({"old"})))
    found = lend(pool, [asks("run", 1), asks("run", 2), asks("run", 3)], {})
    assert [found[f"run-a{n}"].exhausted for n in (1, 2, 3)] == [False, False, True]
    assert found["run-a1"].reason == (
        "pool lab has no free node for it (nodes: 2; run old is still leaving its own, 1 still to come)"
    )


def test_a_node_that_a_run_is_leaving_and_gets_again_does_not_come_for_another() -> None:
    pool = lab(of_pool(1, runs=frozenset({"b"})))
    found = lend(pool, [asks("b", 1), asks("b", 2)], {})
    assert found["b-a1"].state == "granted"
    assert (found["b-a2"].exhausted, found["b-a2"].reason) == (
        True,
        "pool lab has no free node for it (nodes: 1; run b has 1)",
    )


def test_a_node_with_a_mesh_is_lent_to_no_one_and_the_reason_names_it() -> None:
    found = lend(lab(of_pool(1, mesh=True), of_pool(2)), [asks("run", 1), asks("run", 2)], {})
    assert found["run-a1"] == has("run", 1, 2)
    assert (found["run-a2"].state, found["run-a2"].reason) == (
        "pending",
        "pool lab has no free node for it (nodes: 2; run run has 1, 1 with a Monarch mesh)",
    )
    assert lend(lab(of_pool(1)), [asks("run", 1, found["run-a2"])], {})["run-a1"].state == "granted", (
        "once it has ended"
    )


def test_a_node_is_not_lent_before_what_another_run_left_there_has_ended() -> None:
    pool = lab(of_pool(1, runs=frozenset({"old"})))
    assert lend(pool, [asks("new", 1)], {})["new-a1"].state == "pending"
    assert lend(pool, [asks("old", 7)], {})["old-a7"].state == "granted", "its own: its generations are its matter"


def test_a_node_on_an_excluded_host_or_of_no_use_is_not_lent() -> None:
    pool = lab(of_pool(1), of_pool(2, usable=False))
    refused = lend(pool, [asks("run", 1, exclude=("n1",))], {})["run-a1"]
    assert refused.state == "pending"
    assert refused.reason == (
        "pool lab has no free node for it (nodes: 2; 1 free on hosts that it must not have, 1 that cannot be used)"
    )


def test_what_is_lent_elsewhere_is_not_lent_again() -> None:
    found = lend(lab(of_pool(1)), [asks("run", 1)], {"lab-a1": "unreadable"})
    assert found["run-a1"].state == "pending"


def test_a_lent_node_stays_lent_and_passes_the_engines_notice_on() -> None:
    pool = lab(of_pool(1))
    kept = has("run", 1, 1)
    assert lend(pool, [asks("run", 1, kept)], {}) == {"run-a1": kept}
    leaves = replace(pool.grants["lab-a1"], leaving="its time limit", leaves_in_s=60.0)
    told = lend(replace(pool, grants={"lab-a1": leaves}), [asks("run", 1, kept)], {})["run-a1"]
    assert (told.state, told.leaving, told.leaves_in_s) == ("granted", "its time limit", 60.0)


def test_a_node_that_the_pool_has_lost_is_lost_to_the_run_and_its_proof_is_passed_on_later() -> None:
    gone = replace(of_pool(1).grant, state="gone", reason="preempted")
    pool = Pool(name="lab", grants={"lab-a1": gone})
    lost = lend(pool, [asks("run", 1, has("run", 1, 1))], {})["run-a1"]
    assert (lost.state, lost.ended, lost.nodes) == ("gone", False, ("n1",))
    assert lost.reason == "allocation lab-a1 of pool lab is gone: preempted"
    ended = Pool(name="lab", grants={"lab-a1": replace(gone, ended=True)})
    assert lend(ended, [asks("run", 1, lost)], {})["run-a1"] == replace(lost, ended=True)


def test_a_grant_of_the_pool_that_cannot_be_read_takes_nothing_away() -> None:
    kept = has("run", 1, 1)
    assert lend(Pool(name="lab"), [asks("run", 1, kept)], {})["run-a1"] == kept


def test_what_is_given_back_is_gone_and_proves_no_end() -> None:
    released = asks("run", 1, has("run", 1, 1), state="released")
    found = lend(lab(of_pool(1)), [released, asks("new", 1)], {})
    assert (found["run-a1"].state, found["run-a1"].reason, found["run-a1"].ended) == ("gone", "given back", False)
    assert found["new-a1"] == has("new", 1, 1), "its node is free in the same turn"
    again = replace(released, grant=found["run-a1"])
    assert lend(lab(of_pool(1)), [again], {})["run-a1"] == found["run-a1"]
    assert lend(lab(of_pool(1)), [asks("run", 2, state="released")], {})["run-a2"].state == "gone", "it had none yet"


def test_a_pool_that_has_ended_refuses_and_stays_refused() -> None:
    over = lab(of_pool(1, usable=False), over="pool lab has ended")
    refused = lend(over, [asks("run", 1)], {})["run-a1"]
    assert refused == Grant(key="run-a1", state="refused", reason="pool lab has ended")
    assert lend(lab(of_pool(1)), [asks("run", 1, refused)], {})["run-a1"] == refused
    none = Pool(name="lab", there=False)
    assert lend(none, [asks("run", 1)], {})["run-a1"].reason == "there is no pool lab"
    assert lend(none, [asks("run", 1, has("run", 1, 1))], {})["run-a1"].state == "gone"


RUNS, NODES = ("a", "b", "c"), range(1, 5)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "release", "lose", "silent", "back", "dirty", "clean", "end"]), st.integers(0, 99)
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(STEPS)
def test_no_node_is_ever_lent_to_two_runs(steps: list[tuple[str, int]]) -> None:
    held = {n: of_pool(n) for n in NODES}
    pool, asked = lab(*held.values()), dict[str, Asked]()
    before = dict[str, str]()
    for what, which in steps:
        n, run = NODES[which % len(NODES)], RUNS[which % len(RUNS)]
        keys = sorted(asked)
        if what == "ask":
            known = sum(key.startswith(f"{run}-") for key in asked)
            more = range(known + 1, known + 2 + which % 3)
            asked |= {f"{run}-a{number}": asks(run, number, since=float(len(asked))) for number in more}
        elif what == "release" and keys:
            each = asked[keys[which % len(keys)]]
            asked[each.allocation.key] = replace(each, allocation=replace(each.allocation, state="released"))
        elif what == "lose" and n in held:
            pool = replace(pool, grants={**pool.grants, f"lab-a{n}": replace(held.pop(n).grant, state="gone")})
        elif what in ("silent", "back") and n in held:
            held[n] = replace(held[n], usable=what == "back")
        elif what in ("dirty", "clean") and n in held:
            held[n] = replace(held[n], runs=frozenset({run} if what == "dirty" else ()))
        elif what == "end":
            pool = replace(pool, over="pool lab has ended" if which % 5 == 0 else "")
        pool = replace(pool, held={h.grant.key: h for h in held.values()})
        found = lend(pool, [*asked.values()], {})
        assert found.keys() == asked.keys()
        asked = {key: replace(each, grant=found[key]) for key, each in asked.items()}
        assert not [
            k for k, each in asked.items() if each.allocation.state == "released" and found[k].state == "granted"
        ]
        lent = [(g.through, asked[key].run) for key, g in found.items() if g.state == "granted"]
        assert len({through for through, _ in lent}) == len(lent), "one run at a time"
        for through, of in lent:
            assert pool.grants[through].state == "granted"
            new = before.get(through) != of
            assert not new or not pool.held[through].runs - {of}, "and only where no other run has anything left"
        before = dict(lent)
        assert lend(pool, [*asked.values()], {}) == found, "nothing changes when nothing has"
