"""Skips the module that imports this where Monarch is not installed. In the lane `make test-monarch` it fails instead."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from tests.conftest import LANE

if find_spec("monarch") is None and os.environ.get(LANE) != "monarch":
    pytest.skip("torchmonarch is not installed: make test-monarch", allow_module_level=True)

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError

__all__ = ["SupervisionError"]
