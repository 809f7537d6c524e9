"""Settings of Slurm in a run file: bad ones are refused before Slurm is asked, with the key to use instead."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.shell.engines.slurm.validate import notes, time_limit_s
from supervisor.shell.runfile.parse import RunFileError, parse


def wrong(engine: str = "slurm", **slurm: Any) -> list[str]:
    try:
        parse({"name": "run", "allocation": {"engine": engine, "slurm": slurm}})
    except RunFileError as error:
        return error.problems
    return []


def only(**slurm: Any) -> str:
    found = wrong(**slurm)
    assert len(found) == 1, found
    return found[0]


def test_all_that_is_right() -> None:
    assert wrong() == []
    assert wrong(
        partition="gpu", account="llm", qos="high", constraint="h100&ib", gres="gpu:8", exclusive=False, warn_s=60,
        time_limit="2-00:00:00", flags=["--reservation=llm", "--mem=0", "--time-min=60", "--wait-all-nodes=1", "-c 8", "--gres-flags=enforce-binding"],
        setup="module load python\nulimit -l unlimited", node_folder="/local/me", drain_suspects=False,
    ) == []  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("90:30", 5430), ("2:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("1-12:30:15", 131415),
        ("0", 0), ("", None), ("2h", None), ("1:2:3:4", None), ("-5", None), ("1-", None), ("UNLIMITED", None), ("1-1-1", None),
    ],
)  # fmt: skip
def test_time_limits_as_sbatch_reads_them(text: str, seconds: int | None) -> None:
    assert time_limit_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("2h", "2:00:00"), ("1h30m", "1:30:00"), ("90 minutes", "1:30:00"), ("2 days", "2-00:00:00"), ("45s", "0:45"),
        ("unlimited", ""), ("0", ""), ("soon", "1-00:00:00"),
    ],
)  # fmt: skip
def test_a_time_limit_that_is_none_names_the_nearest(text: str, nearest: str) -> None:
    said = only(time_limit=text)
    assert said.startswith(f"allocation.slurm.time_limit = {text!r}: must be minutes, ")
    assert said.endswith(f"nearest: {nearest!r}")


def test_a_limit_has_room_for_the_warning_and_for_an_early_one() -> None:
    assert wrong(time_limit="10:00") == []
    assert "(599 s) is below twice allocation.slurm.warn_s = 300" in only(time_limit="9:59")
    assert "at least '10:00'" in only(time_limit="9:59")
    assert wrong(time_limit="3:00", warn_s=90) == []


def test_a_warning_is_no_shorter_than_slurm_is_early() -> None:
    assert wrong(warn_s=60) == []
    assert only(warn_s=59).startswith("allocation.slurm.warn_s = 59 is below 60 s")
    assert only(warn_s=65536).endswith("sbatch takes no more; at most 65535")


def test_keys_of_slurm_need_slurm() -> None:
    found = wrong(engine="local", partition="gpu", exclusive=False)
    assert [f.split(" is for Slurm")[0] for f in found] == [
        "allocation.slurm.partition = 'gpu'",
        "allocation.slurm.exclusive = False",
    ]
    assert all('set allocation.engine = "slurm"' in f for f in found)
    assert wrong(engine="local", partition="") == []


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--partition=gpu", "allocation.slurm.partition"), ("-p gpu", "allocation.slurm.partition"),
        ("-pgpu", "allocation.slurm.partition"), ("--part=gpu", "allocation.slurm.partition"),
        ("--comment=x", "it identifies the job"), ("--parsable", "it reads the answer"),
        ("--signal=USR1@60", "allocation.slurm.warn_s"), ("--requeue", "a job that ends is requested again"),
        ("-N2", "allocation.nodes"), ("--nodes=2", "allocation.nodes"), ("--array=1-4", "allocation.nodes"),
        ("--output=x", "allocation.slurm.node_folder"), ("--job-name=x", "it identifies the job"),
        ("-J x", "it identifies the job"), ("--exclude=n1", "excluded automatically"),
        ("--exclusive", "allocation.slurm.exclusive"), ("--time 5", "allocation.slurm.time_limit"),
        ("--ar=0-3", "allocation.nodes"), ("--clusters=b", "on one cluster"), ("-Mb", "on one cluster"),
        ("--cluster=b", "on one cluster"), ("--cluster-constraint=x", "on one cluster"), ("--uid=x", "of its own user"),
        ("--version", "submit nothing"), ("--ntasks=8", "groups.ranks_per_group"),
        ("--dependency=afterok:7", "or never start"), ("-d singleton", "or never start"), ("--begin=now+1hour", "would wait for it too"),
        ("-b 16:00", "would wait for it too"), ("--export=NONE", "allocation.slurm.setup"), ("--export-file=e", "allocation.slurm.setup"),
        ("--deadline=2030-01-01", "allocation.slurm.time_limit"),
        ("--no-kill", "ends with its node"), ("-k", "ends with its node"),
        ("--nodefile=hosts", "of any name"), ("-F hosts", "of any name"), ("--oversubscribe", "exclusive = false"), ("-s", "exclusive = false"),
    ],
)  # fmt: skip
def test_a_flag_of_ours_names_the_key(flag: str, instead: str) -> None:
    said = only(flags=[flag])
    assert said.startswith(f"allocation.slurm.flags: {flag!r} cannot be set in flags: ")
    assert instead in said


@pytest.mark.parametrize("flag", ["2", "", "reservation=llm", "--", "; rm"])
def test_what_is_no_flag(flag: str) -> None:
    assert "is not a flag" in only(flags=[flag])


@pytest.mark.parametrize("key", ["partition", "gres", "agent_command"])
def test_a_value_is_one_line(key: str) -> None:
    assert only(**{key: "a\nrm -rf x"}).endswith("must be one line")


def test_a_node_folder_is_a_full_path() -> None:
    assert "must be an absolute path" in only(node_folder="logs")


def test_a_job_per_group_has_its_hosts_alone_and_starts_the_steps_itself() -> None:
    assert wrong(shape="job_per_node", max_pending=8) == []
    assert wrong(shape="job_per_group", max_pending=8, agent_command="/opt/mysrun/agent") == []
    shared = only(shape="job_per_group", exclusive=False)
    assert shared.startswith('allocation.slurm.shape = "job_per_group": needs hosts of its own')
    assert wrong(exclusive=False) == []
    for command in ("srun --container-image=x agent", "env A=1 /usr/bin/srun agent"):
        assert "starts a step on each node itself" in only(shape="job_per_group", agent_command=command)
        assert wrong(agent_command=command) == []


def test_a_job_per_group_is_told_with_what_it_asks_for() -> None:
    def said(nodes_per_group: int, **slurm: Any) -> list[str]:
        groups = {"count": 2, "nodes_per_group": nodes_per_group, "ranks_per_node": 1}
        allocation = {"engine": "slurm", "nodes": 2 * nodes_per_group, "slurm": slurm}
        return notes(parse({"name": "run", "groups": groups, "allocation": allocation}))

    (note,) = said(2, shape="job_per_group")
    assert "asks for 2 jobs of 2 nodes" in note
    assert said(1, shape="job_per_group") == said(2) == []
