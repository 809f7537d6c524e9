"""Inputs of `decide` are kept within a bound, found again, and read back as they were."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.decide import decide
from supervisor.core.model.observed import GpuFact, Observed, SpikeView, StuckView
from supervisor.core.model.spec import AllocationSpec, RunSpec, SlurmSpec, TitanSpec
from supervisor.core.model.stacks import Frame, StackView
from supervisor.shell.control import decision_inputs
from supervisor.shell.control.build_info import program
from supervisor.shell.control.decision_inputs import Inputs, Kept, LostInput, find, take
from tests.unit.core.world import World
from tests.unit.shell.records import MEMORY

OBSERVED = Observed(revision=9, now=12.345678901, store_stable_s=float("inf"))
SPEC = RunSpec(name="run")
AT = (Frame("a\nb", "odd name.py", 3),)
STACK = StackView(frames=AT, held_at=AT, unknown="é")


def kept(folder: Path, digest: str) -> Kept:
    found = find(folder, {digest})[digest]
    assert isinstance(found, Kept), found
    return found


def test_it_is_read_back_as_it_was(tmp_path: Path) -> None:
    taken = take(OBSERVED, SPEC, MEMORY)
    Inputs(tmp_path).keep(taken)
    found = kept(tmp_path, taken.digest)
    assert (found.given.observed, found.given.spec, found.given.memory) == (OBSERVED, SPEC, MEMORY)
    assert found.program == program()


def test_so_is_all_that_a_node_may_say(tmp_path: Path) -> None:
    world = World(groups=3, ranks=2).bring_up()
    world.crash(1)
    name = world.group(0).first_node
    node = world.nodes[name]
    spike = SpikeView(step=3, loss=9.5, usual=2.5, spreads=8.0, own=9.0, own_usual=2.0, own_spreads=7.0)
    ranks = tuple(replace(r, spike=spike, stuck=StuckView(activity="step", where=STACK)) for r in node.ranks)
    gpu = GpuFact(kind="gpu_xid", evidence="GPU 0 [bus]", xid=79, rank=0, during=frozenset({(0, 1), (2, 7)}))
    world.nodes[name] = replace(node, ranks=ranks, gpus=(gpu,), facts={"disk_full": "é"})
    taken = take(world.observed(), world.spec, world.memory)
    Inputs(tmp_path).keep(taken)
    found = kept(tmp_path, taken.digest).given
    assert (found.observed, found.memory) == (world.observed(), world.memory)
    assert decide(found.observed, found.spec, found.memory) == decide(world.observed(), world.spec, world.memory)


def test_a_name_that_is_no_utf_8_is_kept_too(tmp_path: Path) -> None:
    """A file's name or a person's text may be like that, and the next leader would meet it again."""
    odd = "/data/caf\udce9"
    world = World(groups=2).bring_up()
    name = world.group(0).first_node
    world.nodes[name] = replace(world.nodes[name], facts={"disk_full": odd})
    taken = take(world.observed(), replace(world.spec, name="run"), world.memory)
    Inputs(tmp_path).keep(taken)
    found = kept(tmp_path, taken.digest).given
    assert found.observed == world.observed()
    assert found.memory == world.memory
    assert found.observed.nodes[name].facts["disk_full"] == odd


@settings(max_examples=50, derandomize=True, database=None)
@given(st.floats(0, 1e9), st.floats(0, 1e9), st.integers(0, 2**40))
def test_no_number_is_rounded(now: float, stable: float, revision: int) -> None:
    observed = Observed(revision=revision, now=now, store_stable_s=stable)
    given_ = decision_inputs._adapter().validate_json(take(observed, SPEC, MEMORY).body)
    assert given_.observed == observed


def test_what_may_be_a_secret_is_not_kept() -> None:
    canary = "hunter2-canary"
    slurm = SlurmSpec(
        setup=f"export X={canary}", agent_command=f"X={canary} agent", flags=(f"--x={canary}",), warn_s=99
    )
    titan = TitanSpec(steps=77, checkpoint_interval_steps=7, overrides={"wandb.api_key": canary})
    spec = RunSpec(name="run", titan=titan, allocation=AllocationSpec(engine="slurm", slurm=slurm))
    taken = take(OBSERVED, spec, MEMORY)
    assert canary.encode() not in taken.body
    lean = decision_inputs._adapter().validate_json(taken.body).spec
    assert (lean.titan.steps, lean.allocation.slurm.warn_s, lean.policy) == (77, 99, spec.policy)
    assert lean.titan.checkpoint_interval_steps == 7, "it is decided by"


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are never more than two files, of the bound and one input each; the newest are always there."""
    taken = [take(replace(OBSERVED, revision=n), SPEC, MEMORY) for n in range(40)]
    one = Inputs(tmp_path / "one")
    (tmp_path / "one").mkdir()
    one.keep(taken[0])
    size = (tmp_path / "one" / decision_inputs.NAMES[0]).stat().st_size
    monkeypatch.setattr(decision_inputs, "BYTES", 5 * size)
    keeper = Inputs(tmp_path)
    for each in taken:
        keeper.keep(each)
        found = find(tmp_path, {t.digest for t in taken})
        assert each.digest in found
        assert all((tmp_path / n).stat().st_size <= 7 * size for n in decision_inputs.NAMES if (tmp_path / n).exists())
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} <= set(decision_inputs.NAMES)
    assert taken[0].digest not in found
    assert 5 <= len(found) <= 12
    assert {t.digest for t in taken[-5:]} <= found.keys()


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    first, second, third = (take(replace(OBSERVED, revision=n), SPEC, MEMORY) for n in (1, 2, 3))
    Inputs(tmp_path).keep(first)
    path = tmp_path / decision_inputs.NAMES[0]
    Inputs(tmp_path).keep(second)
    path.write_bytes(path.read_bytes()[:-40])
    Inputs(tmp_path).keep(third)
    found = find(tmp_path, {first.digest, second.digest, third.digest})
    assert isinstance(found[first.digest], Kept)
    assert isinstance(found[third.digest], Kept)
    assert str(found[second.digest]) == "its line is torn"


def test_another_input_under_its_digest_is_not_taken_for_it(tmp_path: Path) -> None:
    right, wrong = take(OBSERVED, SPEC, MEMORY), take(replace(OBSERVED, now=0.5), SPEC, MEMORY)
    Inputs(tmp_path).keep(replace(wrong, digest=right.digest))
    found = find(tmp_path, {right.digest})[right.digest]
    assert "its digest differs" in str(found)


def test_one_that_another_version_wrote_and_this_one_cannot_read(tmp_path: Path) -> None:
    body = json.loads(take(OBSERVED, SPEC, MEMORY).body)
    del body["observed"]["now"]
    text = json.dumps(body).encode()
    digest = decision_inputs.hashlib.sha256(text).hexdigest()[:16]
    Inputs(tmp_path).keep(decision_inputs.Given(text, digest))
    found = find(tmp_path, {digest})[digest]
    assert isinstance(found, LostInput)
    assert "cannot read its observed.now" in str(found)
    assert "ask with that version" in str(found)


def test_a_field_that_came_later_has_its_default(tmp_path: Path) -> None:
    body = json.loads(take(OBSERVED, SPEC, MEMORY).body)
    del body["observed"]["engine_word_s"], body["memory"]["silent"]
    text = json.dumps(body).encode()
    digest = decision_inputs.hashlib.sha256(text).hexdigest()[:16]
    Inputs(tmp_path).keep(decision_inputs.Given(text, digest))
    assert kept(tmp_path, digest).given.memory == replace(MEMORY, silent=())


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Inputs(tmp_path / "none")
    with caplog.at_level(logging.ERROR):
        keeper.keep(take(OBSERVED, SPEC, MEMORY))
        keeper.keep(take(OBSERVED, SPEC, MEMORY))
    assert len(caplog.records) == 1
    (tmp_path / "none").mkdir()
    keeper.keep(take(OBSERVED, SPEC, MEMORY))
    assert len(find(tmp_path / "none", {take(OBSERVED, SPEC, MEMORY).digest})) == 1


def test_there_are_none(tmp_path: Path) -> None:
    assert find(tmp_path, {"abc"}) == {}
