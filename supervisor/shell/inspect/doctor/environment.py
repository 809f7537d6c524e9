"""Finds variables that are kept from our processes or may harm them: of the `up` of this home, else of the shell."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.shell.dev.home import system_folder
from supervisor.shell.dev.up_lock import POOL_LOCK
from supervisor.shell.inspect.doctor.finding import Finding, note
from supervisor.shell.processes import holder
from supervisor.wire import environment


def examine(home: Path) -> Iterator[Finding]:
    """Yields the findings on the environment of the `up` of this home, or else of this shell."""
    pid = holder(system_folder(home) / POOL_LOCK)
    try:
        of = environment.of_process(pid) if pid else os.environ
    except OSError:  # it has ended, or belongs to another user
        pid, of = 0, os.environ
    yield from findings(of, "the environment of `supervisor up`" if pid else "this shell's environment")


def findings(of: Mapping[str, str], whose: str) -> Iterator[Finding]:
    for names, rule in environment.found(of, "removed"):
        yield note(f"in {whose}: {', '.join(names)}: {rule.why}", "nothing: no process gets them")
    for names, rule in environment.found(of, "harmful"):
        yield note(f"in {whose}: {', '.join(names)}: {rule.why}", "unset it, if you do not need it")
    if names := [f"{name}={of[name]}" for name in sorted(of) if environment.fits(name, environment.OF_THE_NETWORK)]:
        yield note(f"in {whose}: {', '.join(names)}: the ranks of all runs get them", "nothing, if they are meant")
    if names := environment.proxies(of):
        yield note(
            f"in {whose}: {', '.join(names)}: webhooks and trainers' own downloads use the proxy",
            "nothing: etcd, heals and all other traffic between nodes avoid it",
        )
