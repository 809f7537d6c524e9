"""The Python API against a real etcd, a supervisor and nodes: a run from its launch to its folder."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

import supervisor.client as everstep
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.core.model.spec import TitanSpec
from supervisor.shell.inspect import client as requests
from supervisor.wire import checkpoints, programs

pytestmark = pytest.mark.etcd


def test_a_run_from_its_launch_to_its_folder(
    empty: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    w = empty
    monkeypatch.setenv(programs.SEAM, json.dumps(TOYS))  # TorchTitan's check is the toys' too
    eventually(w.led, 30, "a supervisor leads")
    began = time.time()
    with everstep.connect(w.etcd.endpoint, home=w.runs) as client:
        pool = client.hold(toy_spec(), name="lab", nodes=3, for_="2h")
        run = pool.launch(toy_spec(), name="api", set={"policy.term_grace_s": 0.5, "allocation.spares": 0})
        assert (client.runs()[0].name, run.folder) == ("api", w.runs / "api")
        assert run.wait("running", timeout_s=60) == "run api is running"
        run.wait("step=20", timeout_s=30)
        before = run.status()
        assert (before.phase, [g.generation for g in before.groups]) == ("running", [1, 1])
        metrics = run.metrics()
        assert metrics.step >= 20
        assert all(g.step > 0 for g in metrics.groups)

        w.kill_trainer(requests.choose_run(w.mirror(), "api"), 1)
        found = eventually(lambda: [i for i in run.incidents() if i.state == "recovered"], 30, "it recovers")
        (incident,) = found
        assert (incident.kind, incident.group, incident.rung) == ("crash", 1, 1)
        assert incident.seen_unix_s is not None
        assert incident.recovered_unix_s is not None
        assert began < incident.seen_unix_s < incident.recovered_unix_s < time.time()
        why = run.explain(incident.id)
        assert why.same
        assert str(why).startswith(f"Incident {incident.id}: group 1, rank 0, on node {incident.node}: crash")

        log = [*run.logs(group=1)]
        assert {line.generation for line in log} == {1, 2}
        (end,) = [line for line in log if line.what == "end"]
        assert "SIGKILL" in end.text
        assert [line.what for line in run.logs(group=1, since=end.t, tail=1)] != ["end"]

        node = run.status().groups[1].node
        with (w.system / "nodes" / node / "ranks" / "api.1.2.0" / "output.log").open("a") as file:
            file.write("a line\n")
        with everstep.connect(w.etcd.endpoint, home=w.runs / "elsewhere") as far:
            there = far.run("api")
            (newest,) = there.logs(group=1, tail=1)
            assert (newest.what, newest.generation) == ("line", 2), (
                "of a machine without its files, the nodes are asked"
            )
            with pytest.raises(everstep.EverstepError, match="no log"):
                there.logs(remote=False)
            assert [(at.group, at.unknown) for at in there.stacks()] == [(0, ""), (1, "")]
            done = there.execute("1.0", "sh", "-c", "echo $RANK; echo bad >&2; exit 3")
            assert (done.code, done.stdout, done.stderr, done.error) == (3, "0\n", "bad\n", "")
            assert far.execute(done.node, "true").code == 0
            with pytest.raises(everstep.EverstepError, match="there is no node 'n9'"):
                far.execute("n9", "true")
            assert there.breakpoints() == ()

        assert run.scale(groups=3, because="a node is free") == "spec 2: 3 groups; those that stay train on"
        eventually(lambda: [g.phase for g in run.status().groups] == ["running"] * 3, 60, "three groups train")
        assert run.scale(groups=2).startswith("spec 3: 2 groups")
        eventually(lambda: len(run.status().groups) == 2, 30, "two are left")
        with pytest.raises(everstep.EverstepError, match=r"titan\.stepz"):
            run.relaunch(set={"titan.stepz": 5})
        with pytest.raises(everstep.EverstepError, match=r"room for 1 ranks, .* \(groups\.ranks_per_group = 64, "):
            run.relaunch(set={"groups.ranks_per_group": 64})
        assert run.relaunch(set={"titan.steps": 10**5}).startswith(
            "spec 4: groups that train end after one common step"
        )
        eventually(lambda: [g.generation for g in run.status().groups] == [2, 3], 60, "both start again")
        run.wait("running", timeout_s=60)
        eventually(lambda: [g.phase for g in run.status().groups] == ["running"] * 2, 60, "both have made a step")
        assert pool.status().used_by == {"api": 2}
        assert [each.name for each in client.pools()] == ["lab"]
        with pytest.raises(everstep.EverstepError, match="pool lab is used by run api"):
            pool.release()

        async def seen() -> tuple[everstep.RunStatus, tuple[everstep.IncidentStatus, ...], str]:
            async with await everstep.aconnect(w.etcd.endpoint, home=w.runs) as twin:
                api = await twin.run("api")
                return *await asyncio.gather(api.status(), api.incidents()), await api.stop()

        status, listed, said = asyncio.run(seen())
        assert listed == run.incidents()
        assert [g.generation for g in status.groups] == [2, 3]
        assert said.startswith("api: stopping: groups that train end after one common step")
        with pytest.raises(everstep.EverstepError, match=r"run api was stopped at step .*; it is not finished"):
            run.wait("finished", timeout_s=60)

        past = everstep.open(run.folder)
        steps = past.steps_list()
        assert {(s.group, s.generation) for s in steps} == {(0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (2, 1)}
        assert [i.id for i in past.incidents_list()] == [incident.id]
        ledger = past.ledger()
        assert (ledger.phase, ledger.over, 0.0 < ledger.ettr < 1.0) == ("stopped", True, True)
        assert len(past.steps()) == len(steps)
        by_group = past.goodput().groupby("group")["seconds"].sum()
        assert [by_group[0], by_group[1]] == pytest.approx([ledger.seconds] * 2, rel=0.02)
        assert by_group[2] < ledger.seconds / 2, "it was there for a while"
        assert not [wrong for wrong in ledger.wrong if "under a cause" in wrong]

        assert client.pool("lab").release() == "pool lab: its 3 nodes are given back to the engine"
        assert eventually(lambda: removed(run), 20, "its nodes are given back").startswith("removed run api")
    kept = [*past.logs(group=1)]
    assert {line.generation for line in kept} == {1, 2, 3}, "its logs outlive it"
    assert end in kept
    assert capsys.readouterr() == ("", ""), "the API prints nothing"


@pytest.mark.long
def test_a_run_begins_with_the_checkpoint_of_another(empty: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w = empty
    monkeypatch.setenv(programs.SEAM, json.dumps(TOYS))
    eventually(w.led, 30, "a supervisor leads")
    overrides = {"toy.mode": "quorum", "toy.keeps": True}
    spec = replace(toy_spec(groups=1, spares=0), titan=TitanSpec(steps=10**6, overrides=overrides))
    with everstep.connect(w.etcd.endpoint, home=w.runs) as client:
        first = client.launch(spec, name="first")
        first.wait("step=20", timeout_s=60)
        first.stop()
        with pytest.raises(everstep.EverstepError, match="it is not finished"):
            first.wait("finished", timeout_s=60)
        [saved] = checkpoints.folder_of(str(first.folder)).iterdir()
        with pytest.raises(everstep.EverstepError, match="is no complete checkpoint of a run"):
            client.launch(spec, name="second", resume_from=first.folder)

        async def begun() -> None:
            async with await everstep.aconnect(w.etcd.endpoint, home=w.runs) as twin:
                await twin.launch(spec, name="second", resume_from=saved)

        asyncio.run(begun())
        second = client.run("second")
        second.wait("running", timeout_s=60)
        step = checkpoints.mark_of(saved).step  # type: ignore[union-attr]
        assert step >= 20
        made = eventually(lambda: everstep.open(second.folder).steps_list(), 30, "it makes a step")
        assert made[0].step == step + 1
        assert saved.is_dir()
        second.stop()


def removed(run: everstep.Run) -> str:
    try:
        return run.remove()
    except everstep.EverstepError:
        return ""
