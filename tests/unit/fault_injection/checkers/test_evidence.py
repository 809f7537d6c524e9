"""Traces that a fault leaves elsewhere; the violations are in test_promises."""

from __future__ import annotations

from fault_injection.checkers.evidence import ENDS_BY, LEADER_DIES, LIGHTHOUSE_DIES
from fault_injection.faults.catalogue import FAULTS


def test_the_faults_that_leave_traces_are_those_of_the_catalogue() -> None:
    assert {*ENDS_BY, *LEADER_DIES, *LIGHTHOUSE_DIES} <= set(FAULTS)
