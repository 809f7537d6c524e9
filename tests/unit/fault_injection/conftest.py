from __future__ import annotations

import pytest

from fault_injection.faults import site
from fault_injection.faults.fault import Site
from fault_injection.testbed import netns


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which everything can be broken, on any real one; but no networks are made."""
    monkeypatch.setattr(site, "of_machine", lambda ranks=1: Site(no_collective=site.no_collective(ranks)))
    monkeypatch.setattr(netns, "available", lambda: "not wanted here")
