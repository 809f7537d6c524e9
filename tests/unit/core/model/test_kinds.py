"""Each kind has a row of traits, and no row contradicts itself."""

from __future__ import annotations

from itertools import combinations

import pytest

from supervisor.core.model.kinds import TRAITS, Is, Kind, that_are
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.policy.ladder import FIXED


def test_every_kind_has_a_row() -> None:
    assert set(TRAITS) == set(Kind)


@pytest.mark.parametrize(("one", "other"), list(combinations((Is.PLANNED, Is.ENDED, Is.LIVES, Is.LOST), 2)))
def test_how_its_process_stands_has_one_answer(one: Is, other: Is) -> None:
    assert not that_are(one) & that_are(other)


def test_what_is_alike_is_so_in_one_way() -> None:
    assert not that_are(Is.ALIKE) & that_are(Is.ALIKE_BY_END)


def test_the_rung_is_fixed_or_the_policys() -> None:
    assert {kind.value for kind in FIXED} ^ set(FirstRungSpec.__dataclass_fields__) == {kind.value for kind in Kind}


def test_every_question_is_asked_of_some_kind() -> None:
    assert all(that_are(answer) for answer in Is)
