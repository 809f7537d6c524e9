"""The sentences about nodes that this machine's pool lacks for a run, and about programs and files that it has not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.spec import AllocationSpec, EnvSpec, GroupsSpec, HooksSpec, RunSpec, TrainerSpec
from supervisor.shell.engines import local_room, registry
from supervisor.shell.engines.local import Pool, PoolNode


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (5, ""),
        (4, "the run starts without 1 of its spares"),
        (3, "1 of 2 groups start at once, the others join"),
        (1, "nothing starts before groups.min_groups = 1 is met"),
    ],
)
def test_a_group_needs_all_of_its_nodes(tmp_path: Path, pool: int, said: str) -> None:
    Pool(nodes=tuple(PoolNode(f"n{n}") for n in range(pool)), etcd="127.0.0.1:1", gpus=()).save(tmp_path)
    groups = GroupsSpec(count=2, min_groups=1, nodes_per_group=2, ranks_per_group=2)
    found = local_room.lacks(RunSpec(name="run", groups=groups, allocation=AllocationSpec(nodes=4, spares=1)), tmp_path)
    assert said in found
    assert (f"nodes in the pool: {pool}, free: {pool}, wanted: 5 (4 for groups, 1 more)" in found) is bool(said)


def test_a_run_that_is_scaled_learns_that_nodes_are_lacking(tmp_path: Path) -> None:
    Pool(nodes=tuple(PoolNode(f"n{n}") for n in range(3)), etcd="127.0.0.1:1", gpus=()).save(tmp_path)
    context = registry.Context(home=tmp_path, etcd=(), security="")

    def note(nodes: int, spares: int) -> str:
        before = RunSpec(name="run", groups=GroupsSpec(count=1), allocation=AllocationSpec(nodes=1, spares=1))
        after = RunSpec(
            name="run", groups=GroupsSpec(count=nodes), allocation=AllocationSpec(nodes=nodes, spares=spares)
        )
        return registry.before_scale(before, after, context)

    assert [note(1, 1), note(1, 0), note(2, 3)] == ["", "", ""]
    assert note(5, 1) == (
        "nodes in the pool: 3, free: 3, needed: 4 more; what lacks a node waits until there is one. "
        "`supervisor up --nodes 4` enlarges it, even while an `up` runs"
    )


@pytest.mark.parametrize("engine", ["local", "slurm"])
def test_programs_and_files_that_this_machine_has_not_are_noted_where_its_nodes_are(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "code"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def notes(program: str, hook: str, directory: Path, key: Path) -> list[str]:
        env = EnvSpec(directory=str(directory), files={"KEY": str(key)})
        return registry.notes(
            RunSpec(
                name="run",
                trainer=TrainerSpec(command=(program, "train.py")),
                env=env,
                hooks=HooksSpec(before=(hook,), after=("clean",)),
                allocation=AllocationSpec(engine=engine),
            )
        )

    where = "on this machine; each node must have it"
    folder, key, hook = tmp_path / "code", tmp_path / "key", tmp_path / "code" / "stage.sh"
    assert notes("pyhton3", str(hook), folder, key) == (
        [
            f"env.directory = '{folder}': there is no such folder {where}",
            f"env.files.KEY = '{key}': there is no such file {where}",
            f"trainer.command: there is no program 'pyhton3' {where}",
            f"hooks.before: there is no program '{hook}' {where}",
            f"hooks.after: there is no program 'clean' {where}",
        ]
        if engine == "local"
        else []
    )
    folder.mkdir()
    for file in (key, hook, folder / "clean", tmp_path / "python"):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o700)
    for program in ("python", "./stage.sh"):
        assert notes(program, "./stage.sh", folder, key) == []
