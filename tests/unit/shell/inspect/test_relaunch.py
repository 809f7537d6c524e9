"""Notes beside a change of a run."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.spec import DataSpec, GroupsSpec, RunSpec
from supervisor.shell.inspect.relaunch import data_note


def test_another_number_of_groups_is_noted_where_it_costs_samples() -> None:
    before = RunSpec(name="run", groups=GroupsSpec(count=2))
    after = replace(before, groups=GroupsSpec(count=3))
    assert "read the shares of 2 groups until they start again, and new ones those of 3" in data_note(before, after)
    assert data_note(before, before) == ""
    titan = replace(before.titan, data=DataSpec(source="tokens", path="/tokens"))
    assert data_note(replace(before, titan=titan), replace(after, titan=titan)) == ""
