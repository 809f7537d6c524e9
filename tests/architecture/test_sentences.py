"""The wording of reasons is held in one folder: no test elsewhere makes a sentence, and a planted one is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import sentences

TESTS = Path(__file__).parents[1]


def test_the_wording_is_asserted_in_one_folder() -> None:
    found = sentences.check(TESTS)
    assert not found, "assert codes and values (tests/helpers/reasons.py):\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("file", "code", "caught"),
    [
        ("unit/shell/test_planted.py", "from supervisor.core.report.words import say", True),
        ("integration/test_planted.py", "from supervisor.core.report import words as w", True),
        ("helpers/planted.py", "import supervisor.core.report.words_waits", True),
        ("unit/core/evidence/test_planted.py", "from supervisor.core.report.explain import done", True),
        ("unit/core/test_planted.py", "assert notice.text", True),
        ("unit/core/test_planted.py", "from supervisor.core.report.notifications import due", False),
        ("unit/core/report/test_planted.py", "from supervisor.core.report.words import say", False),
    ],
)
def test_a_planted_sentence_is_caught(tmp_path: Path, file: str, code: str, caught: bool) -> None:
    path = tmp_path / "tests" / file
    path.parent.mkdir(parents=True)
    path.write_text(f"import os\n{code}\n")
    assert [place.rpartition(": ")[0] for place in sentences.check(tmp_path / "tests")] == [f"tests/{file}:2"] * caught


def test_what_may_make_sentences_is_there_and_makes_them() -> None:
    """An entry that no file needs any more would let the next sentence through."""
    for name in sentences.RENDER:
        path = TESTS.parent / name
        files = path.rglob("*.py") if path.is_dir() else [path]
        assert any("supervisor.core.report" in file.read_text() for file in files), name
