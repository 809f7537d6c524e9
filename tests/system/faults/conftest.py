from __future__ import annotations

from tests.unit.fault_injection.faults.test_engine import slurmctld

__all__ = ["slurmctld"]
