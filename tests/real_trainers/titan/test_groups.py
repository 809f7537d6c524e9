"""Groups that train together: records, heal, digests, two ranks a group."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.core.goodput.causes import Cause, of_lines
from supervisor.core.model.spec import DataSpec, TorchFTSpec
from supervisor.wire.records import PEERS_GONE
from tests.real_trainers.titan import hanging
from tests.real_trainers.titan.groups import Groups, Rank, assert_equal_digests
from tests.real_trainers.titan.recipes import REFUSES, SENDS_S, TOLD
from titan_actor import heals

pytestmark = pytest.mark.trainers


def assert_every_second_is_told(rank: Rank) -> None:
    lines = rank.lines()
    own = [line for line in lines if not line["overlaps"]]
    assert own[0]["event"] == "start"
    for before, after in itertools.pairwise(own):
        assert after["start"] == before["t"], (before, after)
    for line in rank.lines("step"):
        assert sum(line["seconds"].values()) == pytest.approx(line["t"] - line["start"], abs=1e-3)
        assert set(line["seconds"]) == {"data", "quorum", "compute", "commit", "heal", "compile"}


def assert_whole_step_lines(rank: Rank, steps: int) -> None:
    committed = [line for line in rank.lines("step") if line["committed"]]
    assert [line["step"] for line in committed] == list(range(1, steps + 1))
    for line in committed:
        assert line["participants"] >= 1
        assert line["loss"] > 0
        assert line["gradient_norm"] > 0
        assert (line["tokens"], line["samples"]) == (128, 2)
        assert (line["group"], line["generation"], line["rank"]) == (rank.launch.group, 1, 0)


def test_two_groups_train_to_the_end(groups: Groups) -> None:
    first, second = (groups.start(group, steps=8, min_groups=2) for group in (0, 1))
    assert [rank.exit_code() for rank in (first, second)] == [0, 0], first.log()[-2000:] + second.log()[-2000:]
    assert_equal_digests(first, second)
    for rank in (first, second):
        progress = rank.progress
        assert progress is not None
        assert (progress.phase, progress.step, progress.error) == ("finished", 8, "")
        assert progress.replica_id.startswith(f"torchtitan_ft_{rank.launch.group}:")
        assert progress.digest is not None
        assert progress.digest.step == 8
        assert_every_second_is_told(rank)
        assert [line["event"] for line in rank.lines("imported", "built", "finished")] == [
            "imported",
            "built",
            "finished",
        ]
        # a group that came late heals into the run and commits fewer
        assert progress.commits == len([line for line in rank.lines("step") if line["committed"]])
    whole = max((first, second), key=lambda rank: len(rank.lines("step")))
    assert_whole_step_lines(whole, 8)


def test_loss_is_the_mean_of_the_replicas(groups: Groups) -> None:
    """Neither the local loss nor the sum: both log the same, near that of one replica alone."""
    ranks = [groups.start(group, steps=6, min_groups=2) for group in (0, 1)]
    for rank in ranks:
        assert rank.exit_code() == 0
    told: list[dict[int, float]] = [
        {line["step"]: line["loss"] for line in rank.lines("step") if line["participants"] == 2} for rank in ranks
    ]
    shared = set(told[0]) & set(told[1])
    assert shared
    for step in shared:
        assert told[0][step] == pytest.approx(told[1][step], rel=1e-5)
        # ln(2048) = 7.6 is the loss of an untrained model
        assert 5 < told[0][step] < 9


def test_first_gradient_is_the_mean_of_the_replicas(groups: Groups, tmp_path: Path) -> None:
    """Two replicas on equal text have the gradient of one. TorchFT alone halves it: the one that heals adds zeros."""
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("".join(f"line {number} of the same text\n" for number in range(200)))
    fields = {"steps": 2, "data": DataSpec(source="folder", path=str(folder))}
    pair = [groups.start(group, min_groups=2, **fields) for group in (0, 1)]
    assert [rank.exit_code() for rank in pair] == [0, 0]
    alone = groups.start(0, generation=2, **fields)
    assert alone.exit_code() == 0
    norms = [
        [line["gradient_norm"] for line in rank.lines("step") if line["step"] == 1 and line["committed"]]
        for rank in pair
    ]
    [[one], [other]] = norms
    [solo] = [line["gradient_norm"] for line in alone.lines("step") if line["step"] == 1]
    assert any(rank.lines("heal") for rank in pair)
    assert one == other == pytest.approx(solo, rel=1e-3)


def assert_as_torchft_tells(rank: Rank, told: Path) -> None:
    """Compares its step records, and the ledger made of them, with TorchFT's own logs of the same process."""
    logged = [json.loads(line) for line in told.read_text().splitlines()]
    commits = [line for line in logged if line["logger"] == "torchft_commits"]
    steps = rank.lines("step")
    assert [line["commit_result"] for line in commits] == [line["committed"] for line in steps]
    assert [line["step"] + 1 for line in commits if line["commit_result"]] == [
        line["step"] for line in steps if line["committed"]
    ]
    assert [line["quorum_id"] for line in commits] == [line["quorum_id"] for line in steps]
    for commit, step in zip(commits, steps, strict=True):
        assert step["start"] <= commit["t"] <= step["t"]
    for quorum in (line for line in logged if line["logger"] == "torchft_quorums"):
        of_it = [line for line in steps if line["quorum_id"] == quorum["quorum_id"]]
        assert of_it or quorum["quorum_id"] == max(line["quorum_id"] for line in logged)
        for first in of_it[:1]:
            assert first["start"] <= quorum["t"] <= first["t"], "it was formed in the first step that has its number"
    assert {line["quorum_id"] for line in steps} <= {line["quorum_id"] for line in logged}
    found = of_lines(rank.lines())
    trained = [i for i in found if i.cause == Cause.PRODUCTIVE]
    failed = [i for i in found if i.cause == Cause.FAILED_STEP]
    for commit, step in zip(commits, steps, strict=True):
        here = [
            i for i in (trained if commit["commit_result"] else failed) if step["start"] <= i.start < i.end <= step["t"]
        ]
        assert here, (
            f"the ledger has no such time in step {step['step']}, of which TorchFT says {commit['commit_result']}"
        )
    refused = [s["t"] - s["start"] for c, s in zip(commits, steps, strict=True) if not c["commit_result"]]
    assert sum(i.seconds for i in failed) == pytest.approx(sum(refused), abs=1e-6)
    between = [s["t"] - s["start"] for c, s in zip(commits, steps, strict=True) if c["commit_result"]]
    assert sum(i.seconds for i in trained) < sum(between)


def test_killed_group_heals_to_equal_state(groups: Groups, tmp_path: Path) -> None:
    told = {rank: tmp_path / f"told-{rank}" for rank in ("survivor", "back")}
    keeps: dict[str, Any] = {"recipe": "tests.real_trainers.titan.recipes:that_keeps_what_torchft_logs"}
    survivor = groups.start(0, environment={TOLD: str(told["survivor"])}, **keeps)
    lost = groups.start(1)
    lost.reached(5, commits=2)
    lost.kill()
    back = groups.start(1, generation=2, resume="peers", environment={TOLD: str(told["back"])}, **keeps)
    back.reached(lost.step + 1, commits=5)
    assert survivor.running
    first = [group.progress.healed for group in (survivor, lost) if group.progress is not None]
    assert sorted(first) == [False, True], "one of the first two had nobody to heal from"
    assert back.progress is not None
    assert back.progress.healed
    survivor.ask("drain")
    back.ask("drain")
    assert [survivor.exit_code(), back.exit_code()] == [0, 0]
    assert_equal_digests(survivor, back)
    heals = back.lines("heal")
    assert heals
    assert heals[0]["transfer_s"] > 0
    healing_step = back.lines("step")[0]
    assert healing_step["healed"]
    assert healing_step["seconds"]["heal"] > 0
    assert_every_second_is_told(back)
    assert_as_torchft_tells(survivor, told["survivor"])
    assert_as_torchft_tells(back, told["back"])
    # a replica's learning rate is that of its committed steps, however many attempts failed
    rates = {line["step"]: line["lr"] for line in survivor.lines("step") if line["committed"]}
    for line in back.lines("step"):
        if line["committed"] and line["step"] in rates:
            assert line["lr"] == rates[line["step"]]


def test_a_killed_data_worker_costs_the_survivor_what_a_killed_trainer_costs(groups: Groups) -> None:
    """The trainer ends at once with an error that names the worker, and the survivor steps on without waiting out a
    timeout of TorchFT."""
    torchft = TorchFTSpec(process_group_timeout_ms=30_000)
    fields = {"torchft": torchft, "overrides": {"dataloader.num_workers": 1}}
    survivor = groups.start(0, **fields)

    def gap_s(generation: int, *, kill_worker: bool) -> float:
        lost = groups.start(1, generation=generation, **fields)
        lost.reached(survivor.step + 3, commits=3)
        (worker,) = Path(f"/proc/{lost.pid}/task/{lost.pid}/children").read_text().split()
        before = survivor.step
        os.kill(int(worker) if kill_worker else lost.pid, signal.SIGKILL)
        code = lost.exit_code()
        assert (code == 1, "DataLoader worker" in lost.log()) == (kill_worker, kill_worker), lost.log()[-3000:]
        survivor.reached(before + 6)
        at = [line["t"] for line in survivor.lines("step") if line["committed"] and line["step"] >= before]
        return max(after - ahead for ahead, after in itertools.pairwise(at))

    of_worker, of_trainer = gap_s(1, kill_worker=True), gap_s(2, kill_worker=False)
    # the lighthouse's heartbeat timeout and its join timeout; TorchFT's wait for a store that is gone is 10 s
    assert max(of_worker, of_trainer) < 2 * (1.0 + 3.0), (of_worker, of_trainer)


HASTY = TorchFTSpec(process_group_timeout_ms=2000, join_timeout_ms=1000)
GIVES_S = 3 * HASTY.process_group_timeout_ms / 1000


def giving(seconds: float, **environment: str) -> dict[str, Any]:
    recipe = "tests.real_trainers.titan.recipes:that_gives_its_state_slowly"
    return {"torchft": HASTY, "recipe": recipe, "environment": {SENDS_S: str(seconds), **environment}}


@pytest.mark.parametrize(("count", "ranks"), [(3, 1), (2, 2)])
def test_a_heal_may_take_longer_than_a_collective(groups: Groups, count: int, ranks: int) -> None:
    """Otherwise those who wait for it give up, and go on without it; it heals to a state that is old by then, and
    begins again: a large model would never be whole again."""
    fields = {"groups": count, **giving(GIVES_S)}
    others = [groups.start_group(group, ranks, **fields) for group in range(count - 1)]
    for rank in itertools.chain(*others):
        rank.reached(5, commits=2)
    late = groups.start_group(count - 1, ranks, **fields)
    late[0].reached(others[0][0].step + 3, commits=3, within_s=10 * GIVES_S)
    for rank in late:
        (heal, *again) = rank.lines("heal")
        assert (heal["transfer_s"] > GIVES_S, again) == (True, [])
    for rank in itertools.chain(*others):
        in_vain = [line["step"] for line in rank.lines("step") if not line["committed"]]
        assert in_vain == [], "no one has waited for a collective in vain"


def test_who_cannot_heal_frees_those_who_wait_for_it_and_ends_soon(groups: Groups, tmp_path: Path) -> None:
    """Their collective may take as long as a heal, and no step of theirs is committed while it tries again."""
    refuses = tmp_path / "refuses"
    fields = giving(0.0, **{REFUSES: str(refuses)})
    first = groups.start(0, **fields)
    first.reached(5)
    refuses.touch()
    within_s = TorchFTSpec().heal_timeout_s / 4
    late = groups.start(1, **fields)
    assert late.exit_code(within_s) == PEERS_GONE, late.log()[-2000:]
    assert late.progress is not None
    assert late.progress.heal_failed is not None
    assert late.progress.heal_failed.times == heals.MOST
    first.reached(first.step + 5)
    refuses.unlink()
    late = groups.start(1, generation=2, resume="peers", **fields)
    late.reached(first.step + 5, commits=5, within_s=within_s)
    assert_equal_digests(first, late)


def test_two_groups_of_two_ranks_heal_to_equal_state(groups: Groups) -> None:
    survivors = groups.start_group(0, 2, writer=True, checkpoint_interval_steps=5)
    lost = groups.start_group(1, 2)
    for rank in lost:
        rank.reached(4, commits=2)
    for rank in lost:
        rank.kill()
    back = groups.start_group(1, 2, generation=2, resume="peers")
    for rank in back:
        rank.reached(5, commits=4)
    # the wish reaches one rank of each group: both of them obey at the same step
    survivors[1].ask("drain")
    back[0].ask("drain")
    assert [rank.exit_code() for rank in (*survivors, *back)] == [0, 0, 0, 0], survivors[0].log()[-2000:]
    for number in (0, 1):
        assert_equal_digests(survivors[number], back[number])
    assert survivors[0].digests() != survivors[1].digests(), "each rank hashes its own shard"
    assert survivors[0].step == survivors[1].step
    mark = survivors[0].progress.checkpoint  # type: ignore[union-attr]
    assert mark is not None
    assert mark.step == survivors[0].step
    assert {name.name for name in os.scandir(mark.path)} >= {"__0_0.distcp", "__1_0.distcp", "complete.json"}


def test_a_rank_waits_for_its_frozen_neighbour_longer_than_for_a_collective(groups: Groups) -> None:
    """TorchFT's commit gives up after the time of one collective, and raises. Then a healthy rank would fail in place
    of the hanging one, before the hang is found."""
    hasty = TorchFTSpec(process_group_timeout_ms=3000, join_timeout_ms=1000)
    recipe = "tests.real_trainers.titan.recipes:that_freezes_rank_1_before_a_commit"
    others = groups.start_group(0, 2, torchft=hasty, recipe=recipe)
    neighbour, frozen = groups.start_group(1, 2, torchft=hasty, recipe=recipe)
    frozen.stopped()
    frozen_at = frozen.step
    still = 3 * hasty.process_group_timeout_ms / 1000
    began = time.monotonic()
    eventually(lambda: not neighbour.running or time.monotonic() - began > still, still + 5)
    assert neighbour.running, neighbour.log()[-2000:]
    frozen.signal(signal.SIGCONT)
    for rank in (*others, neighbour, frozen):
        rank.reached(frozen_at + 4)


def test_abort_frees_a_survivor_in_a_collective(groups: Groups, tmp_path: Path) -> None:
    """A frozen peer's sockets stay open: without the abort the survivor waits for the process group timeout."""
    patient = TorchFTSpec(process_group_timeout_ms=90_000, join_timeout_ms=1000)
    recipe = "tests.real_trainers.titan.recipes:that_freezes_group_1_before_a_collective"
    told = [tmp_path / "told-0", tmp_path / "told-1"]
    survivor, frozen = (
        groups.start(group, torchft=patient, recipe=recipe, environment={TOLD: str(told[group])}) for group in (0, 1)
    )
    frozen.stopped()

    def waits_in_the_collective() -> bool:
        survivor.signal(signal.SIGUSR1)  # the stacks of this look, or of the one before
        main_thread = (survivor.folder / "stacks.txt").read_text().split("Thread 0x")[-1]
        return survivor.step == frozen.step and ("all_reduce" in main_thread or "allreduce" in main_thread)

    eventually(waits_in_the_collective, 30)
    before, failed = survivor.step, survivor.progress.failed_commits  # type: ignore[union-attr]
    assert survivor.ask("abort", lost=[2]) == {"ok": True}
    eventually(waits_in_the_collective, 5)  # a look may meet half a dump
    assert survivor.progress.failed_commits == failed, "it is with another group"  # type: ignore[union-attr]
    assert survivor.ask("abort", lost=[1, 2]) == {"ok": True}
    survivor.reached(before + 3)
    assert survivor.progress is not None
    assert survivor.progress.failed_commits > failed, "the aborted step is not committed"
    uncommitted = [line for line in survivor.lines("step") if not line["committed"]]
    assert uncommitted
    # thawed, it heals and goes on as a member
    frozen.signal(signal.SIGCONT)
    frozen.reached(before + 5)
    eventually(lambda: survivor.progress is not None and survivor.progress.participants == 2, 30, "both step again")
    survivor.ask("drain")
    frozen.ask("drain")
    assert [survivor.exit_code(), frozen.exit_code()] == [0, 0]
    assert_equal_digests(survivor, frozen)
    for rank, file in zip((survivor, frozen), told, strict=True):
        assert_as_torchft_tells(rank, file)


def listening_addresses(pid: int) -> set[str]:
    """Local addresses of a process's listening TCP sockets."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}") if os.path.lexists(f"/proc/{pid}/fd/{name}") else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for family in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{family}", encoding="ascii") as table:
            for row in list(table)[1:]:
                columns = row.split()
                if columns[3] == "0A" and columns[9] in inodes:
                    found.add(f"{family} {columns[1].partition(':')[0]}")
    return found


def test_of_the_ranks_of_a_group_the_one_for_which_the_others_wait_stands_out(groups: Groups) -> None:
    """Each waits for the other's shards inside its step, which is no computing of its own."""
    waits, slow = groups.start_group(0, 2, groups=1, recipe="tests.real_trainers.titan.hanging:small")
    hanging.want(groups.run_dir, 0, 1, "paced", rank=1)
    slow.reached(6, commits=4)
    newest = [rank.progress for rank in (waits, slow) if rank.progress]
    assert newest[0].step_s > hanging.PACE_S / 2
    assert newest[1].compute_s > 2 * newest[0].compute_s > 0


def test_listens_at_the_nodes_address_alone(groups: Groups) -> None:
    ranks = groups.start_group(0, 2, groups=1)
    for rank in ranks:
        rank.reached(2)
    # 127.0.0.1, little-endian
    assert {address for rank in ranks for address in listening_addresses(rank.pid)} == {"tcp 0100007F"}


def test_checks_of_a_rank_that_cannot_be_built(groups: Groups) -> None:
    rank = groups.start(0, overrides={"training.seqlen": 64})
    assert rank.exit_code() == 1
    assert rank.progress is not None
    assert rank.progress.phase == "failed"
    assert "training.seqlen" in rank.progress.error
    told: dict[str, Any] = json.loads((rank.folder / "error.json").read_text())["message"]
    assert told["message"].startswith("ConfigError: ")
    assert "Traceback" in told["extraInfo"]["py_callstack"]
    assert told["extraInfo"]["timestamp"].isdecimal()
    assert "trainer failed: ConfigError" in rank.log()
    assert rank.lines("failed")


def test_a_step_leaves_no_memory_behind(groups: Groups) -> None:
    """TorchTitan collects garbage only now and then: a cycle would hold a gradient of each step until then."""

    def resident_mb(rank: Rank) -> int:
        status = Path(f"/proc/{rank.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) // 1024

    ranks = [groups.start(group, steps=1000) for group in (0, 1)]
    for rank in ranks:
        rank.reached(10, commits=5)
    before = [resident_mb(rank) for rank in ranks]
    for rank in ranks:
        rank.reached(40)
    after = [resident_mb(rank) for rank in ranks]
    assert all(a - b < 100 for a, b in zip(after, before, strict=True)), (before, after)
