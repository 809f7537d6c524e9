from __future__ import annotations

from tests.unit.fault_injection.test_engine_faults import slurmctld

__all__ = ["slurmctld"]
