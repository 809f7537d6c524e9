"""Hot standbys: the next start of a rank is built before the rank fails."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import DataSpec
from supervisor.wire import standbys as wire
from supervisor.wire.address import free_port
from supervisor.wire.records import TrainerLaunch, encode
from tests.real_trainers.titan.groups import Groups, Rank, Warm, assert_equal_digests, complete
from titan_actor import data, kept_state, mends, standby
from titan_actor.overrides import fields_of
from titan_actor.tokens.build import build
from titan_actor.tokens.sources import Corpus
from titan_actor.tokens.tokenizer import ASSETS


def named(pid: int) -> str:
    """A process's name; empty once it has ended, also where this process has not reaped it."""
    try:
        name, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rsplit(") ", 1)
    except OSError:
        return ""
    return "" if state.startswith("Z") else name


def standbys(groups: Groups) -> set[int]:
    """The pids of standbys that are built, below the warm process."""
    children = Path(f"/proc/{groups.warm.process.pid}/task/{groups.warm.process.pid}/children").read_text().split()
    found = {int(p) for c in children for p in Path(f"/proc/{c}/task/{c}/children").read_text().split()}
    return {pid for pid in found if named(pid) == "standby ready"}


def built(groups: Groups, count: int) -> set[int]:
    return eventually(lambda: found if len(found := standbys(groups)) == count else None, 60, f"{count} standbys")


def test_the_next_start_was_built_before_the_rank_failed(groups: Groups) -> None:
    lost = groups.start(0, standby=True)
    other = groups.start(1)
    lost.reached(5, commits=5)
    (waits,) = built(groups, 1)
    eventually(lambda: len(wire.memory(groups.top)) == 1, 10, "its node's agent can tell its memory")
    lost.kill()
    back = groups.start(0, generation=2, resume="peers", standby=True)
    assert back.pid == waits
    back.reached(other.step + 3, commits=4)
    other.reached(back.step)
    assert_equal_digests(back, other)
    assert named(back.pid) == "trainer"
    first = back.lines("step")[0]
    assert (first["healed"], first["committed"], first["participants"]) == (True, True, 2)
    assert first["participating_rank"] is not None, "its first step counts"
    assert back.progress is not None
    assert lost.progress is not None
    assert back.progress.replica_id == lost.progress.replica_id, "the lighthouse need not drop the other first"
    begun = back.lines()[0]
    assert (begun["event"], begun["pid"], begun["generation"]) == ("start", back.pid, 2)
    assert begun["t"] - begun["start"] < 5, "its wait is in no account"
    assert "step:" in back.log(), "it prints where its rank does"
    assert built(groups, 1) != {waits}, "and the next one is built"
    back.signal(signal.SIGTERM)
    assert back.exit_code() == 143, "it ends as any rank"


@pytest.mark.parametrize("ends", [0, 1])
def test_the_ranks_of_a_group_meet_when_their_start_begins(groups: Groups, ends: int) -> None:
    """`ends`: standbys that end before, in whose place a rank without one meets the other."""
    lost, other = groups.start_group(0, 2, standby=True), groups.start_group(1, 2)
    for rank in lost:
        rank.reached(5, commits=5)
    waiting = built(groups, 2)
    for pid in sorted(waiting)[:ends]:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: not named(pid), 30, "its process between has reaped it")
    for rank in lost:
        rank.kill()
    back = groups.start_group(0, 2, generation=2, resume="peers", standby=True)
    assert len(waiting & {rank.pid for rank in back}) == 2 - ends
    for rank in back:
        rank.reached(other[0].step + 3, commits=4)
    for rank, beside in zip(back, other, strict=True):
        beside.reached(back[0].step)
        assert_equal_digests(rank, beside)


def test_a_rank_that_started_cold_has_its_next_start_built(groups: Groups) -> None:
    lost, other = groups.start_cold(0, standby=True), groups.start(1)
    groups.warm.tell(runs=[[str(Path(lost.launch.rank_dir) / "launch.json"), lost.pid], ["/no/such/file", 1]])
    lost.reached(5, commits=5)
    (waits,) = built(groups, 1)
    lost.kill()
    back = groups.start(0, generation=2, resume="peers", standby=True)
    assert back.pid == waits
    back.reached(other.step + 3, commits=4)
    other.reached(back.step)
    assert_equal_digests(back, other)


def test_it_resumes_from_a_checkpoint(groups: Groups) -> None:
    fields: dict[str, Any] = {"groups": 1, "standby": True, "checkpoint_interval_steps": 5}
    lost = groups.start(0, writer=True, **fields)
    eventually(lambda: complete(groups.run_dir), 60, "a checkpoint")
    (waits,) = built(groups, 1)
    newest = complete(groups.run_dir)[-1]
    lost.reached(newest.step + 2)
    lost.kill()
    back = groups.start(0, generation=2, checkpoint=newest, **fields)
    assert back.pid == waits
    back.reached(newest.step + 3, commits=3)
    assert back.lines("resumed")[0]["step"] == newest.step
    assert back.digests()[newest.step + 1] == lost.digests()[newest.step + 1]


@pytest.fixture
def spare(groups: Groups) -> Iterator[Groups]:
    """Another node of the same run."""
    warm = Warm()
    try:
        yield Groups(groups.top, warm, groups.lighthouse)
    finally:
        assert warm.close() == 0


def trained_on(rank: Rank) -> set[str]:
    return {name for line in rank.lines("batch") for name in line["samples"]}


@pytest.mark.parametrize("source", ["recipe", "tokens"])
def test_a_spare_has_a_start_of_whichever_group_comes(
    groups: Groups, spare: Groups, source: str, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {}
    if source == "tokens":
        (tmp_path / "corpus").mkdir()
        text = "".join(Path(file).read_text(encoding="utf-8", errors="replace") for file in data.stdlib_files()[:40])
        (tmp_path / "corpus" / "a.txt").write_text(text)
        build(Corpus(source=str(tmp_path / "corpus")), ASSETS, tmp_path / "store")
        fields["data"] = DataSpec(source="tokens", path=str(tmp_path / "store"))
    lost, other = groups.start(1, standby=True, **fields), groups.start(0, **fields)
    lost.reached(5, commits=5)
    spare.warm.tell(ahead=encode(replace(lost.launch, group=0, generation=0)).decode())
    (waits,) = built(spare, 1)
    lost.kill()
    back = spare.start(1, generation=2, resume="peers", standby=True, **fields)
    try:
        assert back.pid == waits
        back.reached(other.step + 3, commits=4)
        other.reached(back.step)
        assert_equal_digests(back, other)
        assert back.lines("step")[0]["participants"] == 2
        assert back.progress is not None
        assert back.progress.replica_id.startswith("torchtitan_ft_1:")
        assert trained_on(back).isdisjoint(trained_on(other)), "it has its own share of the data"
        assert built(spare, 1) != {waits}, "and its own next start is built"
    finally:
        spare.close()


def test_a_node_of_a_group_is_replaced_and_both_its_nodes_had_built_their_start(groups: Groups, spare: Groups) -> None:
    def start(node: Groups, rank: int, generation: int, port: int) -> Rank:
        own: dict[str, Any] = {"ranks_here": 1, "first_rank": rank, "store": "127.0.0.1", "standby": True}
        resume = "disk" if generation == 1 else "peers"
        return node.start(1, generation=generation, rank=rank, world_size=2, master_port=port, resume=resume, **own)

    lost_node = Groups(groups.top, Warm(), groups.lighthouse)
    try:
        other, port = groups.start_group(0, 2), free_port()
        kept, lost = start(groups, 0, 1, port), start(lost_node, 1, 1, port)
        kept.reached(5, commits=5)
        spare.warm.tell(ahead=encode(replace(lost.launch, group=0, generation=0, store="", master_port=0)).decode())
        waiting = built(groups, 1) | built(spare, 1)
        lost.kill()
        kept.kill()
        port = free_port()
        back = [start(groups, 0, 2, port), start(spare, 1, 2, port)]
        assert {rank.pid for rank in back} == waiting
        for rank in back:
            rank.reached(other[0].step + 3, commits=4)
        for rank, beside in zip(back, other, strict=True):
            beside.reached(rank.step)
            assert_equal_digests(rank, beside)
    finally:
        lost_node.close()
        spare.close()
        assert lost_node.warm.close() == 0


def test_a_spare_that_gets_other_ranks_of_a_group_ends_those_that_it_built(groups: Groups, spare: Groups) -> None:
    own: dict[str, Any] = {"world_size": 2, "ranks_here": 1, "store": "127.0.0.1", "standby": True}
    ahead = spare.launch(0, generation=0, rank=1, first_rank=1, **own)
    spare.warm.tell(ahead=encode(replace(ahead, store="", master_port=0)).decode())
    (waits,) = built(spare, 1)
    try:
        assert spare.start(0, rank=0, first_rank=0, **own).pid != waits
        eventually(lambda: not named(waits), 30, "it is ended")
    finally:
        spare.close()


def test_a_spare_that_a_start_of_another_config_comes_to_forks_it(groups: Groups, spare: Groups) -> None:
    ahead = groups.launch(0, generation=0, steps=999, standby=True)
    spare.warm.tell(ahead=encode(ahead).decode())
    (waits,) = built(spare, 1)
    spare.warm.tell(ahead=encode(ahead).decode())
    spare.warm.tell(ahead="{}")
    spare.warm.tell(ahead=encode(replace(ahead, titan=replace(ahead.titan, steps=998))).decode())
    (again,) = eventually(lambda: standbys(spare) - {waits}, 60, "another is built")
    spare.warm.tell(ahead=encode(replace(ahead, titan=replace(ahead.titan, steps=998))).decode())
    back = spare.start(0, groups=1, standby=True)
    try:
        assert back.pid != again
        eventually(lambda: not named(again), 30, "the one that does not fit is ended")
        back.reached(3, commits=3)
        spare.warm.tell(ahead=encode(ahead).decode())
        back.reached(back.step + 20, commits=20)
        assert len(standbys(spare)) == 1, "a node that trains is no spare: it has its own rank's"
    finally:
        spare.close()


def test_a_spare_builds_once_the_ranks_that_trained_on_it_have_ended(groups: Groups, spare: Groups) -> None:
    rank = spare.start(1, groups=1, standby=True)
    try:
        rank.reached(3, commits=3)
        (own,) = built(spare, 1)
        spare.warm.tell(ahead=encode(groups.launch(0, generation=0, standby=True)).decode())
        rank.reached(rank.step + 20, commits=20)
        assert standbys(spare) == {own}, "not beside a rank that trains"
        rank.kill()
        eventually(lambda: own not in standbys(spare) and len(standbys(spare)) == 1, 60, "it is built in its place")
    finally:
        spare.close()


def configured(launch: TrainerLaunch) -> tuple[Any, Any]:
    """The module that decides about a spare's standbys, and the config of a start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()
        from titan_actor import any_group, config

        return any_group, config.for_launch(launch)


def test_a_spare_without_the_memory_for_it_builds_none(
    groups: Groups, spare: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = SimpleNamespace(of_any_group=True, launch=groups.launch(0))
    any_group, made = configured(rank.launch)
    assert any_group.why_none(made, rank) == ""
    monkeypatch.setattr(kept_state, "free_bytes", lambda: 1_000_000)
    assert any_group.why_none(made, rank).startswith("it needs 0.1 GB of free memory")
    rank.of_any_group = False
    assert any_group.why_none(made, rank) == "", "one that has a rank's size to look at does so elsewhere"


def test_a_trainer_of_ones_own_has_no_standby_on_a_spare(groups: Groups) -> None:
    rank = SimpleNamespace(of_any_group=True, launch=groups.launch(0))
    any_group, made = configured(rank.launch)

    class Mine(type(made)._owner):  # type: ignore[misc]
        pass

    kind = type("Config", (type(made),), {"_owner": Mine})
    assert "Mine is a Trainer of your own" in any_group.why_none(
        kind(**{f: getattr(made, f) for f in fields_of(made)}), rank
    )


def test_a_spare_that_is_needed_no_more_ends_its_standby(groups: Groups, spare: Groups) -> None:
    spare.warm.tell(ahead=encode(groups.launch(0, generation=0, world_size=2, standby=True)).decode())
    built(spare, 2)
    spare.warm.tell(ahead="")
    eventually(lambda: not standbys(spare), 30, "it has ended")


@pytest.mark.parametrize("change", [{"steps": 999}, {"groups": 3}])
def test_another_config_is_not_of_a_standby(groups: Groups, change: dict[str, int]) -> None:
    lost = groups.start(0, standby=True)
    lost.reached(5, commits=5)
    (waits,) = built(groups, 1)
    lost.kill()
    back = groups.start(0, generation=2, **change)
    assert back.pid != waits
    eventually(lambda: not named(waits).startswith("standby"), 30, "it has ended")
    back.reached(3, commits=3)


def test_a_run_that_is_over_has_none(groups: Groups) -> None:
    rank = groups.start(0, steps=60, standby=True, groups=1)
    (waits,) = built(groups, 1)
    assert rank.exit_code() == 0
    eventually(lambda: not named(waits).startswith("standby"), 30, "it has ended")


def test_no_standby_where_its_policy_has_none(groups: Groups) -> None:
    groups.start(0, groups=1).reached(20, commits=20)
    assert not standbys(groups)


@pytest.fixture
def made(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], bool]:
    """Returns true if a rank gets a standby where that many times its memory are free, in this process."""
    rank = groups.start(0, groups=1, standby=True)
    rank.reached(3, commits=3)
    size = int(Path(f"/proc/{rank.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    forked: list[TrainerLaunch] = []

    def fork(launch: TrainerLaunch, of_any: bool) -> Any:
        assert not of_any
        forked.append(launch)
        raise InterruptedError

    def ask(times: float) -> bool:
        monkeypatch.setattr(kept_state, "free_bytes", lambda: times * size)
        mine = standby.Standbys(kept_state.Files())
        monkeypatch.setattr(mine, "_fork", fork)
        mine.started(replace(rank.launch, standby=True), rank.pid)
        forked.clear()
        try:
            mine.look()
        except InterruptedError:
            assert forked[0] == replace(rank.launch, standby=True)
        return bool(forked)

    return ask


def test_it_is_built_where_its_memory_is_free(made: Callable[[float], bool]) -> None:
    assert [made(times) for times in (3.0, 1.5)] == [True, False]
