"""Finds the environment and working directory of a run's ranks on this node, and reads its secrets from their files."""

from __future__ import annotations

import os
import stat
from typing import Any

from supervisor.core.model.spec import EnvSpec
from supervisor.wire.code_tree import Tree
from supervisor.wire.security import is_open

SECRET_BYTES = 65536
"""Longest value: Linux takes 128 KiB for one variable, and a longer file is most likely the wrong one."""


class StartFailed(Exception):
    """A start that fails before its ranks begin. The text is the error of its first rank."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code
        """Exit code of the rank."""


def fields(env: EnvSpec, node: str, tree: Tree | None = None) -> dict[str, Any]:
    """Returns the fields of a spawn request that surround a rank or hook. Raises StartFailed; waits for the files."""
    directory = env.directory if tree is None else tree.place_of(env.directory)
    if directory and not os.path.isdir(directory):
        raise StartFailed(
            f"env.directory = {env.directory!r}: there is no such folder on node {node}"
            + (f", where code {tree.code} is {tree.folder}" if tree is not None else "")
            + "; make it there, or correct the run file"
        )
    given = {**env.set, **{name: _secret(name, path, node) for name, path in env.files.items()}}
    if tree is not None:
        given = tree.first_in(given, os.environ, env.unset)
    return {"env": given, "pass": list(env.pass_), "unset": list(env.unset), "directory": directory}


def _secret(name: str, path: str, node: str) -> str:
    key = f"env.files.{name}"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        with open(handle, "rb") as file:
            about = os.fstat(handle)
            content = file.read(SECRET_BYTES + 1) if stat.S_ISREG(about.st_mode) else None
    except OSError as error:
        raise StartFailed(f"{key}: cannot read {path} on node {node}: {error.strerror}") from error
    if content is None:
        raise StartFailed(f"{key}: {path} on node {node} is not a file")
    if is_open(about):
        raise StartFailed(f"{key}: others than its owner may use {path} on node {node}; run `chmod 600 {path}` there")
    value = content.removesuffix(b"\n").removesuffix(b"\r")
    if not value or len(content) > SECRET_BYTES or b"\0" in value:
        wrong = "is empty" if not value else "has a zero byte" if b"\0" in value else f"is above {SECRET_BYTES} bytes"
        raise StartFailed(f"{key}: {path} on node {node} {wrong}; write the value alone to it")
    return os.fsdecode(value)
