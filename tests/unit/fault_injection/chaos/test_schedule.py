"""A schedule: its text, the plan that it unfolds into, and its refusals."""

from __future__ import annotations

import itertools
import statistics
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import chaos_compound
from fault_injection.chaos import schedule as schedules
from fault_injection.chaos.schedule import (
    CONTROL,
    CRASHES,
    Plan,
    Planned,
    ScheduleError,
    drawn,
    load,
    parse,
    unfold,
)
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Site
from supervisor.core.model.kinds import Kind

SHIPPED = Path(schedules.__file__).parents[1] / "schedules"

SITE = Site(no_memory_cgroup="no cgroup", no_own_disks="one disk", no_cut="one network")


def plan(text: str, groups: int = 3, ranks: int = 2, site: Site = SITE) -> Plan:
    return unfold(parse(tomllib.loads(text)), groups, ranks, site)


def refused(text: str) -> str:
    with pytest.raises(ScheduleError) as caught:
        plan(text)
    return str(caught.value)


def test_a_fault_at_a_step_with_its_victim() -> None:
    made = plan('[[fault]]\nname = "sigkill"\nat_step = 40\ngroup = 1\nrank = 0\n')
    assert made.faults == (Planned(number=1, name="sigkill", at_step=40, group=1, rank=0),)
    assert str(made.faults[0]) == "  1  at step 40: sigkill, group 1 rank 0"
    assert made.not_available["disk_full"] == "one disk"
    assert "sigkill" not in made.not_available


TEN = "".join(f'[[fault]]\nname = "sigkill"\nat_step = {n}\n' for n in range(1, 11))


def test_the_seed_alone_names_the_victims() -> None:
    assert plan("seed = 7\n" + TEN) == plan("seed = 7\n" + TEN)
    assert plan("seed = 7\n" + TEN).faults != plan("seed = 8\n" + TEN).faults
    victims = {(p.group, p.rank) for p in plan("seed = 7\n" + TEN).faults}
    assert len(victims) > 2
    assert all(group in range(3) and rank in range(2) for group, rank in victims)


def test_a_named_victim_moves_no_other() -> None:
    named = TEN.replace("at_step = 1\n", "at_step = 1\ngroup = 2\nrank = 1\n", 1)
    assert plan(named).faults[1:] == plan(TEN).faults[1:]


def test_who_writes_the_checkpoints_is_no_matter_of_the_plan(tmp_path: Path) -> None:
    made = unfold(parse({"fault": [{"name": "checkpoint_disk_full", "at_step": 9}]}), 2, 1, Site())
    assert str(made.faults[0]) == "  1  at step 9: checkpoint_disk_full, whichever group writes"
    made.save(tmp_path / "plan.toml")
    assert not {"group", "rank"} & {line.split(" ")[0] for line in (tmp_path / "plan.toml").read_text().splitlines()}
    assert unfold(load(tmp_path / "plan.toml"), 2, 1, Site()).faults == made.faults


def test_a_leader_dies_where_the_schedule_says(tmp_path: Path) -> None:
    body = {"fault": [{"name": "failpoint", "at_step": 9, "group": 0, "rank": 0, "failpoint": "journaled"}]}
    made = unfold(parse(body), 2, 1, Site())
    assert (made.faults[0].failpoint, str(made.faults[0])[-11:]) == ("journaled", ", journaled")
    made.save(tmp_path / "plan.toml")
    assert load(tmp_path / "plan.toml").fault[0].failpoint == "journaled"


def test_a_rate_by_steps() -> None:
    made = plan('[[rate]]\nname = "sigkill"\nevery_steps = 50\nfirst_step = 20\nuntil_step = 170\n')
    assert [p.at_step for p in made.faults] == [20, 70, 120, 170]


def test_a_rate_by_the_mean_between_two_is_drawn_from_an_exponential_distribution() -> None:
    text = '[[rate]]\nname = "sigkill"\nmtbf_steps = 100.0\nuntil_step = 100000\n'
    steps = [p.at_step for p in plan(text).faults]
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert steps == sorted(steps)
    assert statistics.mean(gaps) == pytest.approx(100, rel=0.1)
    assert statistics.pstdev(gaps) == pytest.approx(100, rel=0.15)
    assert steps == [p.at_step for p in plan(text).faults]
    assert steps != [p.at_step for p in plan("seed = 1\n" + text).faults]


def test_each_is_every_fault_that_can_be_made_here_once() -> None:
    made = plan("seed = 3\n[each]\nevery_steps = 20\nfirst_step = 30\n")
    assert sorted([p.name for p in made.faults] + list(made.not_available)) == sorted(FAULTS)
    assert [p.at_step for p in made.faults][:3] == [30, 50, 70]
    assert [p.name for p in made.faults] != [p.name for p in plan("seed = 4\n[each]\nevery_steps = 20\n").faults]


def test_what_comes_together_stays_together() -> None:
    made = plan(
        """
        [[fault]]
        name = "sigkill"
        at_step = 90
        group = 1
        rank = 0
        [[fault]]
        name = "supervisor_killed"
        at_step = 90
        together = "during"
        [[fault]]
        name = "hiccup"
        at_step = 30
        """
    )
    assert [(p.name, p.at_step, p.together) for p in made.faults] == [
        ("hiccup", 30, ""), ("sigkill", 90, ""), ("supervisor_killed", 90, "during"),
    ]  # fmt: skip


DURING = """
[[fault]]
name = "sigkill"
at_step = 5
[[fault]]
name = "hiccup"
at_step = 5
together = "with"
[[fault]]
name = "slow_step"
at_step = 5
together = "during"
"""


@pytest.mark.parametrize("seed", range(20))
def test_what_comes_while_a_group_is_mended_is_made_to_another(seed: int) -> None:
    """A group that is being started again shows no rank that could be broken."""
    first, beside, during = plan(f"seed = {seed}{DURING}", groups=2).faults
    assert during.group != first.group
    one = plan(f"seed = {seed}{DURING.replace('during', 'with')}", groups=2).faults
    assert (first, beside) == one[:2], "it moves no other victim"
    assert [p.group for p in plan(f"seed = {seed}{DURING}", groups=1).faults] == [0, 0, 0]
    named = plan(f"seed = {seed}{DURING}group = {first.group}\n", groups=2).faults
    assert named[2].group == first.group, "as it is named"


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_saved_and_replays(tmp_path: Path, seed: int) -> None:
    first = unfold(drawn(seed, 12, 30, SITE), 3, 2, SITE)
    first.save(tmp_path / "plan.toml")
    assert unfold(load(tmp_path / "plan.toml"), 3, 2, SITE) == first
    assert len(first.faults) == 12


def test_a_seed_draws_what_can_be_made() -> None:
    plans = [unfold(drawn(seed, 12, 30, SITE), 3, 2, SITE) for seed in range(40)]
    assert plans[0] == unfold(drawn(0, 12, 30, SITE), 3, 2, SITE)
    assert all(len(made.faults) == 12 for made in plans)
    names = {p.name for made in plans for p in made.faults}
    assert names == {name for name, fault in FAULTS.items() if not fault.why_not(SITE)}


def pairs(made: Plan) -> list[tuple[Planned, Planned]]:
    return [(p, q) for p, q in itertools.pairwise(made.faults) if q.together]


@pytest.mark.parametrize("seed", range(1, chaos_compound.SEEDS + 1))
def test_each_seed_of_the_lane_has_a_group_and_a_part_of_the_control_plane_that_fail_while_another_is_mended(
    seed: int,
) -> None:
    """Two groups, as in the lane: then no group is left that trains."""
    made = unfold(drawn(seed, chaos_compound.FAULTS, 30, SITE), 2, 1, SITE)
    crashes = [(p, q) for p, q in pairs(made) if FAULTS[q.name].kinds]
    control = [(p, q) for p, q in pairs(made) if q.name in CONTROL and q.together == "during" and FAULTS[p.name].kinds]
    assert (len(made.faults), len(crashes)) == (chaos_compound.FAULTS, 1)
    assert control
    assert all(p.group != q.group for p, q in crashes), "another group"
    assert all(FAULTS[p.name].kinds for p, _ in pairs(made)), "there is something to be mended"


def test_the_lane_has_every_kind_of_compound() -> None:
    plans = [unfold(drawn(n + 1, chaos_compound.FAULTS, 30, SITE), 2, 1, SITE) for n in range(chaos_compound.SEEDS)]
    seen = {(q.name, q.together) for made in plans for _, q in pairs(made)}
    assert {(name, "during") for name in CONTROL} <= seen
    assert {together for name, together in seen if name in CRASHES} == {"with", "during"}
    hangs = {Kind.HANG, Kind.STALLED}
    assert any(hangs & set(FAULTS[p.name].kinds) and q.name in CRASHES for made in plans for p, q in pairs(made))


@pytest.mark.parametrize("seed", range(20))
def test_few_faults_are_as_many_as_are_asked_for_and_compounds_where_there_is_room(seed: int) -> None:
    for count in range(1, 7):
        made = unfold(drawn(seed, count, 30, SITE), 2, 1, SITE)
        assert len(made.faults) == count
        assert len(pairs(made)) >= min(2, count // 3)
    deaf = Site(not_here="elsewhere")
    assert len(drawn(seed, 6, 30, deaf).fault) == 6, "also where no group can be killed"


NOWHERE = Site(not_here="elsewhere", no_own_etcd="not ours", no_house="not ours")


def test_where_nothing_can_be_broken_nothing_is_drawn_nor_begun() -> None:
    with pytest.raises(ScheduleError, match="no fault can be made here: elsewhere; all: supervisor chaos list"):
        drawn(0, 5, 30, NOWHERE)
    with pytest.raises(ScheduleError, match="no fault can be made here: elsewhere"):
        unfold(parse({"each": {"every_steps": 10}}), 2, 1, NOWHERE)
    never = {"rate": [{"name": "sigkill", "mtbf_steps": 1e308, "until_step": 100}]}
    with pytest.raises(
        ScheduleError, match="nothing would be broken: its rates come to no fault before their last step"
    ):
        unfold(parse(never), 2, 1, SITE)


def test_two_groups_that_crash_at_once_are_two() -> None:
    text = '[[fault]]\nname = "sigkill"\nat_step = 5\n[[fault]]\nname = "sigkill"\nat_step = 5\ntogether = "with"\n'
    for seed in range(10):
        one, two = plan(f"seed = {seed}\n{text}", groups=2).faults
        assert {one.group, two.group} == {0, 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the schedule has no fault"),
        ('[[fault]]\nname = "sigkil"\nat_step = 4\n', "fault.0.name = 'sigkil': there is no such fault; nearest: 'sigkill'"),
        ('[[fault]]\nname = "sigkill"\n', "fault.0.at_step: missing"),
        ('[[fault]]\nname = "sigkill"\nat_step = 0\n', "fault.0.at_step = 0: must be greater than or equal to 1"),
        ('[[fault]]\nname = "sigkill"\nat_step = "4"\n', "fault.0.at_step = '4': must be a valid integer"),
        ('[[fault]]\nname = "sigkill"\nat_stop = 4\n', "fault.0.at_stop: there is no such key; nearest: at_step"),
        ('ranks_per_group = 4\n[[fault]]\nname = "sigkill"\nat_step = 4\n', "ranks_per_group = 4: a group of the run has 2"),
        ('nodes_per_group = 2\n[[fault]]\nname = "sigkill"\nat_step = 4\n', "nodes_per_group = 2: a group of the run has 1"),
        ('ranks_per_group = 3\nnodes_per_group = 2\n[[fault]]\nname = "sigkill"\nat_step = 4\n', "nodes_per_group = 2: ranks_per_group = 3 is no multiple of it"),
        ('nodes_per_group = 0\n[[fault]]\nname = "sigkill"\nat_step = 4\n', "nodes_per_group = 0: must be greater than or equal to 1"),
        ('ranks_per_group = 0\n[[fault]]\nname = "sigkill"\nat_step = 4\n', "ranks_per_group = 0: must be greater than or equal to 1"),
        ('sead = 1\n[[fault]]\nname = "sigkill"\nat_step = 4\n', "sead: there is no such key; nearest: seed"),
        ('[[fault]]\nname = "sigkill"\nat_step = 4\ngroup = 3\n', "fault.0.group = 3: the run has groups 0 to 2"),
        ('[[fault]]\nname = "sigkill"\nat_step = 4\nrank = 2\n', "fault.0.rank = 2: a group has ranks 0 to 1"),
        ('[[fault]]\nname = "sigkill"\nat_step = 4\ntogether = "with"\n', "there is no fault before it"),
        ('[[fault]]\nname = "sigkill"\nat_step = 4\ntogether = "beside"\n', "must be '', 'with' or 'during'"),
        ('[[fault]]\nname = "disk_full"\nat_step = 4\n', "disk_full cannot be made here: one disk"),
        ('[[fault]]\nname = "nan_batch"\nat_step = 4\n', "nan_batch cannot be made here: a batch of a language model"),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 9\n', "rate.0: give every_steps or mtbf_steps"),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 9\nmtbf_steps = 1.0\nevery_steps = 1\n', "one of them"),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 9\nmtbf_steps = 0.0\n', "must be greater than 0"),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 9\nfirst_step = 10\nevery_steps = 1\n', "is before first_step = 10"),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 9\nmtbf_steps = inf\n', "rate.0.mtbf_steps = inf: must be a finite number"),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 30000000000\nevery_steps = 1\n', "until_step = 30000000000: must be less than"),
        (
            '[[fault]]\nname = "sigkill"\nat_step = 4\n' + 2 * '[[fault]]\nname = "sigkill"\nat_step = 5\ntogether = "with"\n',
            "fault.1.at_step = 5: it comes with fault.0, at step 4: give that step\n",
        ),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 1000000\nevery_steps = 1\n', "these are 1000000 faults, and a plan has 5000 at the most"),
        ('[[rate]]\nname = "sigkill"\nuntil_step = 1000000\nmtbf_steps = 0.001\n', "these are 1000000 faults"),
        ("[each]\nevery_steps = 1000000000\n", "each: its last fault might come after step 1000000000"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, said: str) -> None:
    assert said in refused(text)


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert (
        len(refused('[[fault]]\nname = "x"\nat_step = 1\n[[rate]]\nname = "sigkill"\nuntil_step = 9\n').split("\n"))
        == 2
    )


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_what_is_shipped_unfolds_on_two_groups(path: Path) -> None:
    schedule = load(path)
    site = replace(SITE, no_cut="")  # nodes.toml needs links, which root can make
    assert unfold(schedule, 2, schedule.ranks_per_group or 1, site, schedule.nodes_per_group or 1).faults


def test_a_plan_is_for_groups_of_its_size(tmp_path: Path) -> None:
    plan('[[fault]]\nname = "sigkill"\nat_step = 4\n', ranks=2).save(tmp_path / "plan.toml")
    saved = load(tmp_path / "plan.toml")
    assert saved.ranks_per_group == 2
    assert unfold(saved, 3, 2, SITE).faults[0].name == "sigkill"
    with pytest.raises(ScheduleError, match="ranks_per_group = 2: a group of the run has 1"):
        unfold(saved, 3, 1, SITE)


def test_a_plan_is_for_groups_on_as_many_nodes(tmp_path: Path) -> None:
    schedule = parse({"ranks_per_group": 4, "nodes_per_group": 2, "fault": [{"name": "sigkill", "at_step": 4}]})
    made = unfold(schedule, 2, 4, SITE, 2)
    made.save(tmp_path / "plan.toml")
    assert unfold(load(tmp_path / "plan.toml"), 2, 4, SITE, 2) == made
    with pytest.raises(ScheduleError, match="nodes_per_group = 2: a group of the run has 1"):
        unfold(load(tmp_path / "plan.toml"), 2, 4, SITE)
    parse({"nodes_per_group": 2, "fault": [{"name": "sigkill", "at_step": 4}]})  # of a live run, whatever its ranks


def test_what_is_no_schedule(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"cannot read the schedule .*No such file"):
        load(tmp_path / "none.toml")
    for text in ("seed = ", "seed = " + "9" * 5000, "seed = 0x" + "f" * 5000, "seed = " + "[" * 200_000):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(ScheduleError, match="is not valid TOML"):
            load(tmp_path / "bad.toml")


def test_more_faults_than_a_plan_may_have_are_not_drawn() -> None:
    with pytest.raises(ScheduleError, match="these are 2000000 faults"):
        drawn(1, 2_000_000, 30, SITE)


def test_faults_that_no_run_would_come_to_are_not_drawn() -> None:
    with pytest.raises(ScheduleError, match="a fault would come after step 1000000000"):
        drawn(0, 5, 10**9, SITE)
