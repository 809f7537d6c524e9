"""Scans a folder of code for its manifest: what is ignored, what is left out as a secret, what is refused (ADR 24)."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from supervisor.ports.errors import Fatal
from supervisor.wire.code import CHUNK, File, Link, Manifest, is_inside

IGNORE_FILE = ".everstepignore"

IGNORED = (
    ".git/", ".hg/", ".svn/", ".jj/", "__pycache__/", "*.py[cod]", ".venv/", "venv/", ".tox/", ".nox/", "node_modules/",
    ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".hypothesis/", "*.egg-info/", ".DS_Store",
    ".idea/", ".vscode/", "/runs/", "/wandb/", "/outputs/",
)  # fmt: skip
"""Patterns that are ignored unless the folder's own file takes them back by `!`."""

SECRET = GitIgnoreSpec.from_lines(
    (
        ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "*.keytab", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
        ".netrc", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd", "credentials.json", ".ssh/", ".aws/", ".gnupg/", ".kube/",
    )
)  # fmt: skip
"""Patterns of secrets: left out and named, whatever the ignore file says."""

OURS = ("supervisor", "agents", "titan_actor", "everstep_trainer")
"""Packages of ours: the tree is first in the ranks' PYTHONPATH, so they would start these in the place of ours."""

HASHED_AT_ONCE = 4


@dataclass
class Scanned:
    """A folder as it was found."""

    folder: Path
    manifest: Manifest
    secrets: list[str] = field(default_factory=list)
    """Paths that were left out because they look like secrets."""
    others: list[str] = field(default_factory=list)
    """Paths that were left out because they are no files: sockets, pipes."""
    links: list[Link] = field(default_factory=list)


def scan(folder: Path, most_bytes: float) -> Scanned:
    """Returns the manifest of a folder. Raises Fatal with what must be changed there, OSError if a file cannot be read."""
    root = folder.resolve()
    if not root.is_dir():
        raise Fatal(f"{folder} is not a folder: name the folder that holds the code")
    found = Scanned(root, Manifest(()))
    known = _ignored(root)
    sizes: dict[str, os.stat_result] = {}
    total = 0
    for path, about in _walk(root, "", known, found):
        total += about.st_size
        if total > most_bytes:
            raise Fatal(
                f"{root} has more than {most_bytes / 2**20:g} MiB (it came to {path}): leave data and checkpoints out by "
                f"{IGNORE_FILE}, which has the syntax of .gitignore, or raise --most-mib"
            )
        sizes[path] = about
    if not sizes:
        raise Fatal(f"{root} holds no file to sync, without what is ignored: name the folder that holds the code")
    for name in OURS:
        if f"{name}.py" in sizes or any(path.startswith(f"{name}/") for path in sizes):
            raise Fatal(
                f"{root / name} would be taken for the package of this name of Everstep: rename it, or sync a folder below "
                f"it, or leave it out by {IGNORE_FILE}"
            )
    with ThreadPoolExecutor(HASHED_AT_ONCE) as pool:
        files = pool.map(lambda item: _file(root, *item), sizes.items())
        found.manifest = Manifest(tuple(files), tuple(found.links))
    return found


def _ignored(root: Path) -> GitIgnoreSpec:
    """Returns what is ignored: the built-in patterns, and those of the folder's ignore file, or else of its .gitignore."""
    for name in (IGNORE_FILE, ".gitignore"):
        if (root / name).is_file():
            try:
                return GitIgnoreSpec.from_lines([*IGNORED, *(root / name).read_text(errors="replace").splitlines()])
            except ValueError as error:
                raise Fatal(f"{root / name}: {error}") from error
    return GitIgnoreSpec.from_lines(IGNORED)


def _walk(root: Path, below: str, ignored: GitIgnoreSpec, found: Scanned) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the files with their paths, and notes links and what is left out."""
    with os.scandir(root / below) as entries:
        there = sorted(entries, key=lambda entry: entry.name)
    for entry in there:
        path = posixpath.join(below, entry.name)
        try:
            path.encode()
        except UnicodeEncodeError:
            raise Fatal(f"{os.fsencode(root / path)!r}: a name that is not UTF-8: rename it, or ignore it") from None
        folder = entry.is_dir(follow_symlinks=False)
        as_matched = f"{path}/" if folder else path
        if ignored.match_file(as_matched):
            continue
        if SECRET.match_file(as_matched):
            found.secrets.append(as_matched)
        elif entry.is_symlink():
            found.links.append(_link(root, path))
        elif folder:
            yield from _walk(root, path, ignored, found)
        elif stat.S_ISREG((about := entry.stat(follow_symlinks=False)).st_mode):
            yield path, about
        else:
            found.others.append(path)


def _link(root: Path, path: str) -> Link:
    target = os.readlink(root / path)
    pointed = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    end = (root / path).resolve()
    if target.startswith("/") or not is_inside(pointed) or not end.is_relative_to(root):
        raise Fatal(
            f"the link {root / path} leads out of the folder, to {end}, or is absolute: nodes do not have that. Copy it there, name the "
            f"path by a variable of [env], or leave the link out by {IGNORE_FILE}"
        )
    return Link(path, target)


def _file(root: Path, path: str, about: os.stat_result) -> File:
    seen, size = hashlib.sha256(), 0
    with (root / path).open("rb") as source:
        while part := source.read(CHUNK):
            seen.update(part)
            size += len(part)
    return File(path, bool(about.st_mode & stat.S_IXUSR), size, seen.hexdigest())
