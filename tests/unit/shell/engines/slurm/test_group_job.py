"""Names of keys, and Slurm's lists of hosts."""

from __future__ import annotations

import pytest

from supervisor.shell.engines.slurm import group_job


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[1,3]", ("n1", "n3")),
        ("gpu[007-010,12],cpu-1", ("gpu007", "gpu008", "gpu009", "gpu010", "gpu12", "cpu-1")),
        ("a,b[1-2],c", ("a", "b1", "b2", "c")),
        ("r[1-2]n[1,3]-ib", ("r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib")),
    ],
)
def test_hosts_are_those_of_scontrol_show_hostnames(listed: str, expected: tuple[str, ...]) -> None:
    assert group_job.hosts(listed) == expected


@pytest.mark.parametrize("keys", [("run-a1", "run-a2"), ("a9", "a10", "a11"), ("x-a1-a7", "x-a1-a8")])
def test_a_name_gives_its_keys_back(keys: tuple[str, ...]) -> None:
    name = group_job.named(keys)
    assert (group_job.keys_of(name), group_job.MARK in name) == (keys, True)


def test_a_key_is_its_own_name() -> None:
    assert group_job.keys_of("run-a1") == ("run-a1",)


@pytest.mark.parametrize("keys", [("a1", "a3"), ("a2", "a1"), ("a1", "b2"), ("a", "b")])
def test_other_keys_have_no_name(keys: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="not numbered one after the other"):
        group_job.named(keys)
