"""If a round does not fit into one transaction, its withdrawals go first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.shell.control import observe
from supervisor.shell.control.loop import Loop
from supervisor.wire import keys
from supervisor.wire.records import NodeDesired, decode


def test_a_node_that_lost_its_group_is_told_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 1260 of 500 nodes: an agent that came back before its new record began a group that had been moved away."""
    left = keys.desired("n9", "run")
    loop: Any = Loop.__new__(Loop)
    loop._mirror = SimpleNamespace(items={left: SimpleNamespace(value=b"old")}, keys=lambda prefix: [left])
    monkeypatch.setattr(observe, "runs_on", lambda mirror, run: [])

    wanted = {keys.desired(f"n{k}", "run"): b"new" for k in range(5)}

    puts, later = loop._difference("run", {"memory": b"m"}, wanted, 3)

    assert list(puts)[:2] == ["memory", left]
    assert not decode(puts[left], NodeDesired).trainers
    assert len(puts) == 3
    assert later == {key: value for key, value in wanted.items() if key not in puts}
