"""Code that an operator on another machine syncs to the enrolled nodes of a pool. A namespace is a machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from fault_injection.testbed import netns
from fault_injection.testbed.own_slurm import available
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
    case = f"{sync_cases.__file__}::{sync_cases.test_enrolled_nodes_fetch_from_another_machine_through_a_cut.__name__}"
    with netns.network(len(sync_cases.NODES) + 1) as net:
        command = [sys.executable, "-m", "pytest", case, "-q", "-s", "--timeout", str(WITHIN_S)]
        command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inside'}"]
        inner = subprocess.Popen(
            netns.inside(net, command),
            env=netns.environment(net), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            output, _ = inner.communicate(timeout=WITHIN_S + 20)
        finally:
            # its fixtures end what it started
            if inner.poll() is None:
                inner.terminate()
                inner.wait(60)
        print(output)
        assert inner.returncode == 0, output[-4000:]
