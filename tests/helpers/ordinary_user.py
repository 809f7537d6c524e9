"""An ordinary user of this machine, for programs of a root test: no root, no capability, no folder of root's."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
NAME = "nobody"
"""Slurm starts jobs only of users that the machine knows; this one is on every Linux, and has nothing."""
ENTRY = pwd.getpwnam(NAME)


def as_user(*argv: str) -> list[str]:
    """A command of that user, in `view`. Its process is the one that is started: nothing stays in between."""
    setpriv = ["setpriv", f"--reuid={ENTRY.pw_uid}", f"--regid={ENTRY.pw_gid}", "--init-groups"]
    return [*view(), *setpriv, *argv]


@functools.cache
def view() -> tuple[str, ...]:
    """A prefix for a root's command that must find this interpreter like any other user. A checkout or Python below a
    folder that only root may enter (/root) is shown alone in it, in the command's own mount namespace."""
    hidden: dict[Path, list[Path]] = {}
    for path in sorted({REPOSITORY, *(Path(p).resolve() for p in (sys.prefix, sys.base_prefix))}):
        above = [p for p in reversed(path.parents) if not p.stat().st_mode & 0o001]
        if above:
            hidden.setdefault(above[0], []).append(path)
    if not hidden:
        return ()
    lines = ["set -e", "at=$(mktemp -d /tmp/view-XXXXXX)"]
    for folder, paths in hidden.items():
        lines += ["mount -t tmpfs -o mode=755 none $at"]
        for n, path in enumerate(paths):
            lines += [f"mkdir $at/{n}", f"mount --bind {shlex.quote(str(path))} $at/{n}"]
        lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}"]
        for n, path in enumerate(paths):
            lines += [f"mkdir -p {shlex.quote(str(path))}", f"mount --bind $at/{n} {shlex.quote(str(path))}"]
        lines += [f"umount $at/{n}" for n in range(len(paths))] + ["umount $at"]
    lines += ["rmdir $at", 'exec "$@"']
    return ("unshare", "--mount", "sh", "-c", "\n".join(lines), "sh")


@contextlib.contextmanager
def folder(logs: Path) -> Iterator[Path]:
    """The user's own folder, gone after the block; its *.log files are kept in `logs`."""
    made = Path(tempfile.mkdtemp(prefix="ou", dir="/tmp"))  # pytest's own are closed to others
    try:
        own(made)
        yield made
    finally:
        for n, path in enumerate(sorted(made.rglob("*.log"))):
            shutil.copy(path, logs / f"{n}-{path.parent.name}-{path.name}")
        shutil.rmtree(made)


def own(*paths: Path) -> None:
    for path in paths:
        os.chown(path, ENTRY.pw_uid, ENTRY.pw_gid)


def environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "USER": NAME, "LOGNAME": NAME, "PYTHONPATH": str(REPOSITORY)}


def must_reach(*modules: str) -> None:
    """Raises AssertionError, with the remedy, when that user cannot import this checkout's modules."""
    command = as_user(sys.executable, "-c", f"import {', '.join(modules)}")
    result = subprocess.run(
        command, env={**os.environ, **environment(Path("/"))}, cwd="/", capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, (
        f"user {NAME} cannot run {sys.executable} with {REPOSITORY} (let others read both: chmod -R o+rX): {result.stderr}"
    )


def uids(pid: int) -> set[int]:
    """The real, effective, saved and file system users of a process."""
    return {int(word) for word in _status(pid)["Uid"].split()}


def capabilities(pid: int) -> int:
    """All capabilities that the process has or could get by itself, as bits."""
    status = _status(pid)
    return int(status["CapEff"], 16) | int(status["CapPrm"], 16) | int(status["CapAmb"], 16)


def _status(pid: int) -> dict[str, str]:
    lines: Sequence[str] = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
