"""Faults that can be made on this machine, and the missing parts where one cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fault_injection.faults import site
from fault_injection.faults.catalogue import FAULTS
from fault_injection.testbed.unavailable import PACKAGES

OF_A_NAMESPACE = {"agent_cut_off", "checkpoint_disk_full", "checkpoint_folder_gone", "disk_full", "node_silent"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of root's commands: all exist, and each of them succeeds at everything."""
    for name in PACKAGES:
        command(tmp_path, name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(site, "no_memory_cgroup", lambda: "")
    site.no_reset.cache_clear()
    return tmp_path


def command(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def missing(word: str) -> dict[str, str]:
    """Faults that cannot be made here for a reason with this word -> the reason."""
    here = site.of_machine()
    return {name: why for name, fault in FAULTS.items() if word in (why := fault.why_not(here))}


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("ip", OF_A_NAMESPACE), ("nsenter", OF_A_NAMESPACE), ("unshare", OF_A_NAMESPACE), ("iptables", {"agent_cut_off"}),
        ("ss", {"socket_reset"}), ("strace", {"etcd_slow"}),
    ],
)  # fmt: skip
def test_the_command_that_is_missing_is_named_and_its_package_and_nothing_else_is_lost(
    root: Path, name: str, faults: set[str]
) -> None:
    assert missing("no `") == {}
    site.no_reset.cache_clear()
    (root / name).unlink()
    why = f"no `{name}` command (Debian: apt-get install {PACKAGES[name]})"
    assert missing("no `") == dict.fromkeys(faults, why)


def test_who_is_not_root_is_told_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing("not root:") == dict.fromkeys(OF_A_NAMESPACE, "not root: run it as root")


def test_a_root_that_may_make_no_namespace_sees_what_failed(root: Path) -> None:
    command(root, "ip", "echo 'mount --make-shared /run/netns failed: Operation not permitted' >&2; exit 1")
    found = missing("Operation not permitted")
    assert set(found) == OF_A_NAMESPACE
    assert all(why.startswith("ip netns add sv") for why in found.values())
