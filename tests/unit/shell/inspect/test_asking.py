"""The nodes that are asked about a rank."""

from __future__ import annotations

import pytest

from supervisor.ports.errors import Fatal
from supervisor.shell.inspect import asking
from supervisor.wire import keys
from supervisor.wire.records import NodeObserved, TrainerObserved, encode
from tests.unit.shell.records import mirror_of, run_values


def _runs(node: str, group: int, generation: int) -> dict[str, bytes]:
    trainer = TrainerObserved(run="run", group=group, generation=generation, rank=0, pid=5, state="running")
    return {keys.observed(node): encode(NodeObserved(node=node, sequence=1, trainers=(trainer,)))}


def test_a_node_that_claims_anothers_rank_is_not_asked() -> None:
    """`exec` and `debug` would send it what a person types."""
    forged = _runs("n2", 0, 10**6)
    assert asking.ranks(mirror_of({**run_values(), **_runs("n1", 0, 1), **forged}), "run") == {(0, 0): ("n1", 1)}
    with pytest.raises(Fatal, match="does not run now"):
        asking.node_of(mirror_of({**run_values(), **forged}), "run", 0, 0)
