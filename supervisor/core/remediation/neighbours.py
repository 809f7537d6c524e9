"""Chooses nodes that go together: those at one switch first, else in the order of their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from supervisor.core.model.observed import NodeView


def nearest_first(kept: Sequence[str], free: Sequence[str], count: int, nodes: Mapping[str, NodeView]) -> list[str]:
    """Returns `free` with those first that a group should take beside the nodes that it has kept.

    They are of the innermost switch that holds the kept ones and `count` more; of several such switches, the one with
    the fewest free nodes, so that larger gaps stay. Where that spans several switches below it, few of them serve. The
    order stays where no switch is known.
    """
    paths = {node: _path(nodes, node) for node in (*free, *kept)}
    shared = _shared([paths[node] for node in kept]) if kept else None
    below = Counter(path for node in free for path in _from_outermost(paths[node]))
    fits = [path for path, there in below.items() if there >= count and (shared is None or shared[: len(path)] == path)]
    if not fits:
        return list(free)
    best = min(fits, key=lambda path: (-len(path), below[path], path))
    return sorted(free, key=lambda node: _rank(paths[node], best, below))


def common_switch(members: Sequence[str], nodes: Mapping[str, NodeView]) -> str:
    """Returns the innermost switch that all members are at; empty if there is none, or one of theirs is unknown."""
    return ".".join(_shared([_path(nodes, node) for node in members]))


def _rank(path: tuple[str, ...], best: tuple[str, ...], below: Mapping[tuple[str, ...], int]) -> tuple[object, ...]:
    """Sorts nodes of `best` first; of its switches, the one with the most free nodes first."""
    inside = path[: len(best)] == best
    return (not inside, *((-below[path], path) if inside else ()))


def _path(nodes: Mapping[str, NodeView], node: str) -> tuple[str, ...]:
    view = nodes.get(node)
    return tuple(view.switch.split(".")) if view is not None and view.switch else ()


def _from_outermost(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [path[:depth] for depth in range(len(path) + 1)]


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    shared = paths[0]
    for path in paths[1:]:
        depth = next(
            (i for i, (a, b) in enumerate(zip(shared, path, strict=False)) if a != b), min(len(shared), len(path))
        )
        shared = shared[:depth]
    return shared
