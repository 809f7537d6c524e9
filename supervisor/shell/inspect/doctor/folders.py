"""Finds the file system of a folder, and checks if the folder can be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

NETWORKS = (
    *("nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "cifs", "smb3", "glusterfs", "wekafs", "pvfs2", "orangefs"),
    *("afs", "9p", "virtiofs", "panfs", "quobyte", "daos"),
)
"""File systems that several machines share. FUSE may be shared or not, and counts as shared."""


def kind_of(folder: Path, mounts: str = "/proc/self/mounts") -> tuple[str, bool]:
    """Returns a folder's file system (or that of its existing parents), and true if machines may share it."""
    path = folder.resolve()
    best, kind = "", "unknown"
    try:
        lines = Path(mounts).read_text(errors="replace").splitlines()
    except OSError:
        return kind, False
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        where = fields[1].replace("\\040", " ")
        if path.is_relative_to(where) and len(where) >= len(best):
            best, kind = where, fields[2]
    return kind, kind in NETWORKS or kind.startswith("fuse")


def writable(folder: Path) -> bool:
    """Returns true if writing there works. Permission bits mean little on a network file system, or for root."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return os.access(folder, os.X_OK)
    except OSError:
        return False
