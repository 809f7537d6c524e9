"""Profiles of the property tests: `default` for `make check`, `long` with HYPOTHESIS_PROFILE=long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

# A failure found by the default profile is shrunk by the long one: shrinking takes minutes.
settings.register_profile(
    "default",
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=_QUIET,
)
settings.register_profile("long", max_examples=2500, deadline=None, suppress_health_check=_QUIET, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long profile takes longer than a test usually may."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "long":
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.timeout(3 * 3600))
