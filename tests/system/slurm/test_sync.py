"""Code that an operator on another machine syncs to the enrolled nodes of a pool. A namespace is a machine."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import pytest

from fault_injection.testbed import netns
from fault_injection.testbed.own_slurm import available
from tests.helpers.inside import passes_inside
from tests.system.slurm import sync_cases

WITHIN_S = 600


@pytest.mark.root
@pytest.mark.etcd
@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.timeout(WITHIN_S + 30)
def test_a_pool_with_certificates_takes_code_from_another_machine(tmp_path: Path) -> None:
    """Run by a pytest of its own inside the hub's namespace: a process cannot be in two networks."""
    if why_not := netns.available() or available() or ("" if which("openssl") else "no openssl"):
        pytest.skip(why_not)
    with netns.network(len(sync_cases.NODES) + 1) as net:
        passes_inside(net, sync_cases.test_enrolled_nodes_fetch_from_another_machine_through_a_cut, tmp_path, WITHIN_S)
