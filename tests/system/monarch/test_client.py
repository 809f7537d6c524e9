"""Monarch in the program of a mesh, and a training's config, before any node is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.system.monarch.needs import SupervisionError

from titan_actor.monarch_trainer import _spec  # isort: skip  (after `needs`)

__all__ = ["SupervisionError"]

FAILS = """
import os, tempfile
from pathlib import Path
from monarch._rust_bindings.monarch_hyperactor.config import get_global_config
from monarch.actor import this_host
from supervisor.client import EverstepError, mesh
from supervisor.wire import monarch
os.environ["HYPERACTOR_TLS_CA"] = "/of/mine.pem"
this_host()
before, settings = dict(os.environ), get_global_config()
try:
    mesh._Client.of_this_process("127.0.0.1")
except EverstepError as error:
    print(error)
assert dict(os.environ) == before
assert get_global_config() == settings
assert not list(Path(tempfile.gettempdir()).glob("everstep-mesh-*"))
"""


def test_a_client_that_cannot_be_leaves_all_as_it_was(tmp_path: Any) -> None:
    found = subprocess.run(
        [sys.executable, "-c", FAILS],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert found.returncode == 0, found.stderr
    assert "this program has used Monarch already, which binds its transport once" in found.stdout


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"step": 7}, "titan.step = 7: there is no such key; nearest: titan.steps"),
        ({"data": {"source": "fold"}}, "titan.data.source = 'fold': must be"),
    ],
)
def test_a_config_with_a_mistake_is_a_value_error(keys: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _spec(keys)
    assert _spec({"data": {"source": "folder", "path": "/text"}}).data.path == "/text"
