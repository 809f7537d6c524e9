"""The table of Xids."""

from __future__ import annotations

import pytest

from supervisor.core.evidence import xid_catalog
from supervisor.core.model.kinds import Rung


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 68, 92, 94, 154])
def test_what_a_program_does_and_what_was_mended_moves_nobody(code: int) -> None:
    assert xid_catalog.XIDS[code].rung in (None, Rung.RESTART)


@pytest.mark.parametrize("code", [48, 64, 74, 79, 95, 119, 120])
def test_what_needs_a_reset_or_a_hand_moves_the_group(code: int) -> None:
    assert xid_catalog.XIDS[code].rung == Rung.REPLACE


def test_the_table_is_whole() -> None:
    assert {known.bucket for known in xid_catalog.XIDS.values()} == set(xid_catalog.RUNGS)
    assert all(xid_catalog.XIDS[code].rung == Rung.REPLACE for code in xid_catalog.AT_ONCE)
    assert all(known.meaning for known in xid_catalog.XIDS.values())


def test_the_words() -> None:
    assert xid_catalog.meaning(79) == ", it has fallen off the bus"
    assert xid_catalog.meaning(9999) == ""
