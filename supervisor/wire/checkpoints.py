"""The layout of checkpoints on disk, shared by writers and readers:
`<run_dir>/checkpoints/step-<step>.g<group>.gen<generation>/`, complete once its marker exists."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
from pathlib import Path

from supervisor.wire.records import CheckpointMark, RecordError, decode

MARKER = "complete.json"

NAME = re.compile(r"step-(\d+)\.g(\d+)\.gen(\d+)")


def folder_of(run_dir: str) -> Path:
    """Returns the folder of a run's checkpoints."""
    return Path(run_dir) / "checkpoints"


def places_of(run_dir: str) -> Path:
    """Returns the folder of the ranks' places in their data: one folder for each checkpoint's step, and the newest."""
    return Path(run_dir) / "data"


def refuse_open(run_dir: str, mark: CheckpointMark | None) -> str:
    """Returns a sentence if the folder of checkpoints or that of `mark` is a stranger's, or all may write into the latter;
    empty if not.

    Strangers are all but this user, root, the owner of the run's folder, and the group if it may write into the folder
    of checkpoints. Where all may write into that, the mode of `mark` says nothing: a mount gives it to all. Raises
    OSError.
    """
    top = folder_of(run_dir)
    mode = top.stat().st_mode if top.exists() else 0
    shared = mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP
    for folder in (folder for folder in [top, *([Path(mark.path)] if mark is not None else [])] if folder.exists()):
        about = folder.stat()
        known = about.st_uid in (0, os.geteuid(), os.stat(run_dir).st_uid)
        if not known and (folder == top or not shared):
            return (
                f"{folder} belongs to another user ({_name(about.st_uid)}), who so decides what is trained: remove it, "
                "or give it by chown to the user who trains"
            )
        if about.st_mode & stat.S_IWOTH and not mode & stat.S_IWOTH:
            return f"every user may write into {folder}: run `chmod o-w {folder}`, and see that its files are yours"
    return ""


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def mark_of(folder: Path) -> CheckpointMark | None:
    """Returns a complete checkpoint's marker, at its present folder; None if it is torn, or its name differs."""
    try:
        mark = decode((folder / MARKER).read_bytes(), CheckpointMark)
    except (OSError, RecordError):
        return None
    found = CheckpointMark(step=mark.step, path=str(folder), group=mark.group, generation=mark.generation)
    return found if folder.name == name_of(mark) else None


def name_of(mark: CheckpointMark) -> str:
    """Returns the name of the checkpoint's folder."""
    return f"step-{mark.step}.g{mark.group}.gen{mark.generation}"


def lend(mark: CheckpointMark, run_dir: Path) -> None:
    """Gives a run another run's complete checkpoint to start from: hard links to its files, or copies where those cannot
    be. So too the ranks' places in their data at that step. The marker comes last. Raises OSError."""
    of, to = Path(mark.path), folder_of(str(run_dir)) / name_of(mark)
    of_run = of.parent.parent
    data, own = (places_of(str(run)) / f"step-{mark.step}" for run in (of_run, run_dir))
    for left in (to, own):
        if left.exists():
            shutil.rmtree(left)  # what an interrupted launch left
    if data.is_dir():
        shutil.copytree(data, own, copy_function=_link, ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(of, to, copy_function=_link, ignore=shutil.ignore_patterns(MARKER))
    _link(of / MARKER, to / MARKER)


def _link(of: str | Path, to: str | Path) -> None:
    try:
        os.link(of, to)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(of, to)


def listed(run_dir: str) -> list[tuple[int, Path, CheckpointMark | None]]:
    """Returns (step, folder, mark or None if torn) of all checkpoints, the newest first."""
    folders = [(match, f) for f in folder_of(run_dir).glob("step-*") if (match := NAME.fullmatch(f.name))]
    folders.sort(key=lambda entry: (int(entry[0][1]), int(entry[0][3])), reverse=True)
    return [(int(match[1]), folder, mark_of(folder)) for match, folder in folders]


def others(run_dir: str) -> list[str]:
    """Returns a sentence for each entry of the folder that is not a complete checkpoint of the run. Raises OSError."""
    found = []
    for path in sorted(folder_of(run_dir).iterdir()):
        if path.name.startswith(".") or mark_of(path) is not None:
            continue
        if NAME.fullmatch(path.name) is None:
            found.append(f"{path.name} (foreign: its name is not that of a checkpoint)")
        elif (path / MARKER).exists():
            found.append(f"{path.name} (foreign: its {MARKER} does not match its name)")
        else:
            found.append(f"{path.name} (torn: it has no {MARKER})")
    return found


def generations(run_dir: str) -> dict[int, int]:
    """Returns each group's newest generation that began a checkpoint (that still exists)."""
    found: dict[int, int] = {}
    for folder in folder_of(run_dir).glob("step-*"):
        match = NAME.fullmatch(folder.name)
        if match is not None:
            found[int(match[2])] = max(found.get(int(match[2]), 0), int(match[3]))
    return found
