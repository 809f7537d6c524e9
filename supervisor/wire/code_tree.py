"""Lays out versions of the code as trees below a folder: `VERSION/` for a whole one, `VERSION.part/` for one that is being
fetched (ADR 24)."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from supervisor.core.model.code import CodeVersion
from supervisor.wire import code, environment
from supervisor.wire.code_client import CodeClient

UNTOUCHED_S = 10**9
"""Time of the last change of every file that is laid out. One that was written to since has another, and is not used for
the next version."""

KEPT = 3
"""Newest trees that are kept beside those that are wanted."""

PATH = "PYTHONPATH"

MANIFESTS = "manifests"
DIGITS = 16
"""Digits of a version that name its tree: tracebacks show them in each line."""

_PART = ".part"


@dataclass(frozen=True)
class Tree:
    """A version of the code on this machine."""

    code: CodeVersion
    folder: Path

    def place_of(self, directory: str) -> str:
        """Returns the working directory: in the tree, if it is the synced folder or below it."""
        try:
            return str(self.folder / Path(directory).relative_to(self.code.folder)) if directory else ""
        except ValueError:
            return directory

    def first_in(self, given: Mapping[str, str], own: Mapping[str, str], unset: Sequence[str] = ()) -> dict[str, str]:
        """Returns `given` with a PYTHONPATH that begins with the tree. What follows is that of `given`, or else of the
        environment `own`, unless that is `unset`."""
        before = given.get(PATH, "" if environment.fits(PATH, unset) else own.get(PATH, ""))
        return {**given, PATH: os.pathsep.join(filter(None, (str(self.folder), before)))}


class Trees:
    """The trees in one folder, which only this process lays out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: set[str] = set()

    def at(self, version: str) -> Path:
        """Returns where the tree of a version is, or would be."""
        return self.folder / version[:DIGITS]

    def _part(self, version: str) -> Path:
        return self.folder / f"{version[:DIGITS]}{_PART}"

    def has(self, version: str) -> bool:
        """Returns true if the whole tree is there. The first time it looks at each file: a machine that lost its power may
        have left a part. Such a tree is fetched again, but for one from which a process runs: it was whole, and what has
        changed a file there since is that process."""
        if not self.at(version).is_dir():
            self._whole.discard(version)
        elif version not in self._whole:
            if self._is_whole(version):
                self._whole.add(version)
            elif self.at(version).name in self._used():
                return True
            else:
                _remove(self._part(version))
                self.at(version).rename(self._part(version))
        return version in self._whole

    def _is_whole(self, version: str) -> bool:
        try:
            files = code.decode((self.folder / MANIFESTS / version).read_bytes()).files
        except (OSError, code.BadManifest):
            return False
        return all(_is_laid(self.at(version) / file.path, file) for file in files)

    def fetch(self, client: CodeClient, version: str) -> None:
        """Fetches a version: files that an older tree has are linked, the others come from the store. What was fetched
        stays for the next try. Raises StoreError, OSError, BadManifest."""
        part = self._part(version)
        for folder in (part, self.folder / MANIFESTS):
            folder.mkdir(parents=True, exist_ok=True)
        body = client.manifest(version)
        manifest = code.decode(body)
        for folder in sorted({(part / path).parent for path in _paths(manifest)}):
            folder.mkdir(parents=True, exist_ok=True)
        lacking = [file for file in manifest.files if not _is_laid(part / file.path, file)]
        lacking = self._linked(part, lacking, version)
        if lacking:
            _receive(client, part, lacking)
        for link in manifest.links:
            with contextlib.suppress(FileNotFoundError):
                (part / link.path).unlink()
            (part / link.path).symlink_to(link.target)
        (self.folder / MANIFESTS / version).write_bytes(body)
        part.rename(self.at(version))
        self._whole.add(version)

    def offer(self, client: CodeClient, version: str) -> int:
        """Sends the store what it lacks of a version that lies here. Returns the number of contents. Raises StoreError,
        OSError, BadManifest."""
        body = (self.folder / MANIFESTS / version).read_bytes()
        here = {f.digest: f for f in code.decode(body).files if _is_laid(self.at(version) / f.path, f)}
        lacking = [here[digest] for digest in client.missing(body) if digest in here]
        if lacking:
            client.put(self.at(version), lacking, code.OFFER)
        return len(lacking)

    def keep(self, wanted: Collection[str]) -> None:
        """Removes all trees but those that are wanted, from which a process runs, and the newest KEPT others. Ignores what
        cannot be removed."""
        names = {version[:DIGITS] for version in wanted}
        others = [e for e in _entries(self.folder) if e.name != MANIFESTS and e.name.removesuffix(_PART) not in names]
        others.sort(key=_changed_s, reverse=True)
        used = self._used() if others[KEPT:] else set()
        for entry in others[KEPT:]:
            if entry.name not in used:
                _remove(entry)
        for manifest in _entries(self.folder / MANIFESTS):
            if not self.at(manifest.name).is_dir():
                manifest.unlink(missing_ok=True)
                self._whole.discard(manifest.name)

    def _used(self) -> set[str]:
        """Returns the names of the trees from which processes of this user were started."""
        found: set[str] = set()
        for entry in _entries(Path("/proc")):
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    found.update(environment.of_process(int(entry.name)).get(PATH, "").split(os.pathsep))
        return {Path(path).name for path in found if Path(path).parent == self.folder}

    def _linked(self, part: Path, lacking: list[code.File], version: str) -> list[code.File]:
        """Links files that another tree has, and returns the others."""
        known = dict(self._known(version)) if lacking else {}
        left = []
        for file in lacking:
            source = known.get((file.digest, file.executable))
            if source is None or not _is_laid(source, file):
                left.append(file)
                continue
            (part / file.path).unlink(missing_ok=True)
            try:
                os.link(source, part / file.path)
            except OSError:  # a file system has only so many links for a file
                left.append(file)
        return left

    def _known(self, version: str) -> Iterator[tuple[tuple[str, bool], Path]]:
        for entry in _entries(self.folder / MANIFESTS):
            if entry.name != version and self.at(entry.name).is_dir():
                with contextlib.suppress(OSError, code.BadManifest):
                    for file in code.decode(entry.read_bytes()).files:
                        yield (file.digest, file.executable), self.at(entry.name) / file.path


def _receive(client: CodeClient, part: Path, lacking: list[code.File]) -> None:
    """Receives the contents of files, each once, into their places."""
    places: dict[str, list[code.File]] = {}
    for file in lacking:
        places.setdefault(file.digest, []).append(file)
    with client.get(list(places)) as stream:
        for digest, files in places.items():
            found, size = code.read_head(stream)
            if (found, size) != (digest, files[0].size):
                raise code.Torn("the store sent another file than it was asked for")
            first = part / files[0].path
            code.write_content(stream, digest, size, first, partial(_finish, mode=_mode(files[0])))
            for file in files[1:]:
                (part / file.path).unlink(missing_ok=True)
                if file.executable == files[0].executable:
                    os.link(first, part / file.path)
                else:
                    with first.open("rb") as source:
                        code.write_content(source, digest, size, part / file.path, partial(_finish, mode=_mode(file)))


def _paths(manifest: code.Manifest) -> Iterable[str]:
    yield from (file.path for file in manifest.files)
    yield from (link.path for link in manifest.links)


def _mode(file: code.File) -> int:
    return 0o500 if file.executable else 0o400


def _finish(descriptor: int, mode: int) -> None:
    os.fchmod(descriptor, mode)
    os.utime(descriptor, (UNTOUCHED_S, UNTOUCHED_S))


def _is_laid(path: Path, file: code.File) -> bool:
    """Returns true if a file was laid out there for this entry, and not written to since."""
    try:
        found = path.lstat()
    except OSError:
        return False
    same = stat.S_ISREG(found.st_mode) and found.st_size == file.size and stat.S_IMODE(found.st_mode) == _mode(file)
    return same and found.st_mtime_ns == UNTOUCHED_S * 10**9


def _remove(tree: Path) -> None:
    for folder, _, _ in os.walk(tree):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(tree, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _changed_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
