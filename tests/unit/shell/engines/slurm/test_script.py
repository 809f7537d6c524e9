"""The lines of a submission's script that bash runs by themselves."""

from __future__ import annotations

import subprocess

import pytest

from supervisor.shell.engines.slurm.script import GROUPED, SWITCH


@pytest.mark.parametrize(
    ("pattern", "address", "switch"),
    [
        ("switch.switch.node", "spine.leaf1.n1", "spine.leaf1"),
        ("switch.node", "leaf1.n1", "leaf1"),
        ("block.node", "block2.n1", "block2"),
        ("node", "n1.site.org", ""),
        (None, None, ""),
    ],
    ids=["tree", "one switch", "block", "no topology", "not set"],
)
def test_the_switches_are_those_that_slurm_says(pattern: str | None, address: str | None, switch: str) -> None:
    said = {"SLURM_TOPOLOGY_ADDR_PATTERN": pattern, "SLURM_TOPOLOGY_ADDR": address, "SLURM_JOB_ID": "7"}
    environment = {name: value for name, value in said.items() if value is not None}
    for line, expected in ((SWITCH, switch), (GROUPED, f"{switch}.job-7".lstrip("."))):
        shown = subprocess.run(
            ["bash", "-c", f'{line}; echo "$switch"'], env=environment, capture_output=True, text=True, check=True
        )
        assert shown.stdout == f"{expected}\n"
