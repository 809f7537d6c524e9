"""The checkpoint that a start from disk takes: the folder decides, not the record in etcd."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.observed import Checkpoint, DiskView
from supervisor.core.model.reason import Code, Reason
from tests.unit.core.world import World


def kept(step: int) -> Reason:
    """Returns the reason that names a checkpoint of group 0's first generation."""
    return Reason.of(Code.CHECKPOINT, step=step, group=0, generation=1)


def newest(step: int) -> Reason:
    return Reason.of(Code.NEWEST_COMPLETE, checkpoint=kept(step))


def starts_from(checkpoint: Reason, record: Reason | None = None, passed: tuple[Reason | str, ...] = ()) -> Reason:
    return Reason.of(Code.STARTS_FROM, checkpoint=checkpoint, record=record, passed=passed)


GONE = Reason.of(Code.RECORD_GONE, step=50)


def mark(step: int, generation: int = 1, group: int = 0) -> Checkpoint:
    return Checkpoint(step, f"/run/checkpoints/step-{step}.g{group}.gen{generation}", group, generation)


def disk(w: World, *complete: Checkpoint, others: tuple[str, ...] = (), at: float | None = None) -> None:
    """Gives the leader's list of the folder, of now if no other time is given."""
    w.disk = DiskView(at=w.now if at is None else at, complete=complete, others=others)


def stopped(w: World) -> World:
    """Stops everything: the engine has taken every allocation, and gives others."""
    w.now += w.spec.policy.healthy_after_s
    for group in w.memory.groups.values():
        number = int(group.first_node.removeprefix("n"))
        w.grant(number, "gone", reason="stopped")
        w.nodes[group.first_node] = replace(w.nodes[group.first_node], registered=False)
    w.round()
    for key, allocation in w.memory.allocations.items():
        if allocation.state == "wanted" and key not in w.grants:
            w.bring(int(key.removeprefix("run-a")))
    for g in w.memory.groups:
        w.admit(g)
    return w


def trained(groups: int = 2) -> World:
    """A world that has trained, and whose newest checkpoint that a leader heard of is of step 50."""
    w = World(groups=groups, spares=0).bring_up()
    w.save(0, step=50)
    w.round()
    assert w.memory.checkpoint is not None
    assert w.memory.checkpoint.step == 50
    return w


def resumed(w: World) -> set[int | None]:
    """Steps of the checkpoints from which the groups start."""
    for _ in range(4):
        w.round(1.0)
    assert [g.phase for g in w.memory.groups.values()] == ["starting"] * len(w.memory.groups), w.last.waits
    return {g.checkpoint.step if g.checkpoint else None for g in w.memory.groups.values()}


def test_what_was_saved_while_no_supervisor_led_is_resumed_from() -> None:
    w = stopped(trained())
    disk(w, mark(200), mark(150), mark(100), mark(50), at=w.now + 1.0)
    assert resumed(w) == {200}
    said = starts_from(newest(200), Reason.of(Code.RECORD_OLDER, step=50))
    assert w.memory.checkpoint == mark(200)
    assert w.memory.resumed is not None
    assert w.memory.resumed.said == said
    ended = [i.resumed for i in w.incidents.values()]
    assert ended == [said] * len(ended) != [], "every incident that was ended by it says so"


def test_the_choice_is_in_the_journal_once_for_all_groups() -> None:
    w = stopped(trained(groups=3))
    disk(w, mark(200), at=w.now + 1.0)
    loads = []
    for _ in range(4):
        loads += [a for a in w.round(1.0).actions if a.verb == "load"]
    assert [(a.key, a.reason) for a in loads] == [("load:0:2:200", starts_from(newest(200), GONE))]


def test_torn_and_foreign_folders_are_named() -> None:
    w = stopped(trained())
    others = (
        "step-250.g0.gen1 (torn: it has no complete.json)",
        "backup (foreign: its name is not that of a checkpoint)",
    )
    disk(w, mark(200), others=others, at=w.now + 1.0)
    assert resumed(w) == {200}
    assert w.memory.resumed is not None
    assert w.memory.resumed.said == starts_from(newest(200), GONE, passed=others)


def test_a_record_whose_checkpoint_is_not_complete_any_more_gives_way_to_an_older_one() -> None:
    w = stopped(trained())
    torn = "step-50.g0.gen1 (torn: it has no complete.json)"
    disk(w, mark(25), others=(torn,), at=w.now + 1.0)
    assert resumed(w) == {25}
    assert w.memory.resumed is not None
    assert w.memory.resumed.said == starts_from(newest(25), GONE, passed=(torn,))
    w.commit(0, step=26)
    w.round()
    w.save(0, step=30)
    w.round()
    assert w.memory.checkpoint is not None
    assert w.memory.checkpoint.step == 30, "the next one is named, though the record had a newer step"


def test_a_frozen_writer_that_thaws_after_a_resume_is_not_resumed_from() -> None:
    """Its step 100 is of a past that the run has left: it went on from step 50 without it."""
    w = stopped(trained())
    disk(w, mark(50), others=("step-100.g0.gen1 (torn: it has no complete.json)",), at=w.now + 1.0)
    assert resumed(w) == {50}
    for g in w.memory.groups:
        w.commit(g, step=60)
    w.round()
    w.open_gate()
    stopped(w)
    disk(w, mark(100), mark(50), at=w.now + 1.0)
    assert resumed(w) == {50}
    assert w.memory.resumed is not None
    given_up = Reason.of(Code.GIVEN_UP, checkpoint=kept(100))
    assert w.memory.resumed.said == starts_from(newest(50), passed=(given_up,))
    for g in w.memory.groups:
        w.commit(g, step=70)
    w.round()
    w.open_gate()
    stopped(w)
    disk(w, mark(120, generation=3), mark(100), mark(50), at=w.now + 1.0)
    assert resumed(w) == {120}, "what the generation that went on has saved counts"


def test_a_group_waits_for_a_list_that_began_after_its_old_generation_was_gone() -> None:
    w = stopped(trained())
    disk(w, mark(50), at=w.now - 1.0)
    w.round(1.0)
    w.round(1.0)
    assert {g.phase for g in w.memory.groups.values()} == {"placing"}
    assert w.waiting(Code.BEING_LISTED) == [{"group": 0}, {"group": 1}]
    assert w.last.look_again_at is not None
    disk(w, mark(200), mark(50))
    assert resumed(w) == {200}


def test_where_the_folder_cannot_be_seen_the_record_is_taken_and_it_is_said() -> None:
    w = stopped(trained())
    unseen = "/run/checkpoints cannot be listed on here: No such file or directory"
    w.disk = DiskView(at=w.now + 1.0, unseen=unseen)
    assert resumed(w) == {50}
    assert w.memory.resumed is not None
    assert w.memory.resumed.said == starts_from(Reason.of(Code.BY_RECORD, checkpoint=kept(50), why=unseen))


def test_where_none_is_complete_the_record_is_kept() -> None:
    """The trainers fail and report it: a begin at step 0 would throw the run's steps away in silence."""
    w = stopped(trained())
    disk(w, at=w.now + 1.0)
    assert resumed(w) == {50}


def test_a_new_run_in_a_new_folder_begins_and_nothing_is_said_of_it() -> None:
    w = World(groups=2)
    w.disk = DiskView(at=w.now, unseen="/run/checkpoints cannot be listed on here: No such file or directory")
    w.start_up()
    assert w.memory.checkpoint is None
    assert w.memory.resumed is not None
    assert w.memory.resumed.said is None


def test_who_heals_from_peers_waits_for_no_list_and_loads_nothing() -> None:
    w = trained()
    disk(w, mark(50), at=0.0)
    w.crash(1)
    w.round()
    w.recover(1)
    assert w.group(1).resume == "peers"
    assert w.incident.resumed is None


def test_the_loss_of_everything_is_free_where_only_the_disk_knows_that_it_got_anywhere() -> None:
    w = trained()
    w.memory = replace(
        w.memory, groups={g: replace(group, checkpoint=mark(50)) for g, group in w.memory.groups.items()}
    )
    disk(w, mark(200), mark(50))
    for group in w.memory.groups.values():
        w.grant(int(group.first_node.removeprefix("n")), "gone", reason="stopped")
    w.round()
    assert w.memory.spent == {}
