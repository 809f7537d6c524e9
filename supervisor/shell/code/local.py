"""Brings the code of a run or pool to this machine, for the check before a start (ADR 24)."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from supervisor.core.model.code import CodeVersion
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Store
from supervisor.shell.code.scan import scan
from supervisor.shell.control import observe
from supervisor.shell.control.leader import leader
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import code, keys
from supervisor.wire.code_client import CodeClient, StoreError
from supervisor.wire.code_tree import Tree, Trees
from supervisor.wire.security import Security


@contextlib.contextmanager
def tree_of(store: Store, name: str, security: Security) -> Iterator[Tree | None]:
    """Yields the code of a run or pool: the folder that was synced, if it is here and unchanged, else a copy that goes with
    the block. None: no code was synced, or `name` is empty. Raises Fatal if it cannot be fetched."""
    mirror = Mirror(store.list(keys.PREFIX)) if name else None
    found = observe.code(mirror, name) if mirror is not None else None
    if mirror is None or found is None:
        yield None
    elif _is_here(found):
        yield Tree(found, Path(found.folder))
    else:
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            yield Tree(found, _fetched(mirror, found, Path(folder), security))


def _is_here(found: CodeVersion) -> bool:
    if not Path(found.folder).is_dir():
        return False
    with contextlib.suppress(Fatal, OSError):
        return code.digest_of(scan(Path(found.folder), math.inf).manifest.encode()) == found.version
    return False


def _fetched(mirror: Mirror, found: CodeVersion, folder: Path, security: Security) -> Path:
    lead, trees = leader(mirror), Trees(folder)
    if lead is None or not lead.page:
        raise Fatal(f"code {found} cannot be fetched for the check: no supervisor leads")
    try:
        trees.fetch(CodeClient(lead.page, security), found.version)
    except (StoreError, code.BadManifest, OSError) as error:
        raise Fatal(f"code {found} cannot be fetched for the check: {error}") from error
    return trees.at(found.version)
