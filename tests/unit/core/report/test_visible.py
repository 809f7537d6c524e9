"""Text from outside is shown, not obeyed."""

from __future__ import annotations

import unicodedata

import pytest

from supervisor.core.report.visible import visible


@pytest.mark.parametrize(
    ("wrote", "shown"),
    [
        ("[rank0]: [/data/x] :smile: [red]no[/red]", "[rank0]: [/data/x] :smile: [red]no[/red]"),
        ("\x1b[32mstep\x1b[0m 1 \x1b[38;5;9mx", "step 1 x"),
        ("\x1b[2J\x1b[Hgone", "␛[2J␛[Hgone"),
        ("\x1b]0;a title\x07 \x1b]8;;http://x\x1b\\link", "␛]0;a title␇ ␛]8;;http://x␛\\link"),
        ("a\rb\x08\x7f\x00", "a␍b␈␡␀"),
        ("\x9b31m \x9d0;x\x9c", "�31m �0;x�"),
        ("abc\u202edef\u2066\u2028", "abc�def��"),
        ("one\n\ttwo", "one\n\ttwo"),
        ("Schrödinger 東京 🚀 \u200d\xa0é", "Schrödinger 東京 🚀 \u200d\xa0é"),
        (b"\xff\xfe".decode(errors="surrogateescape"), "��"),
    ],
)
def test_each_character_that_a_terminal_obeys_is_a_sign(wrote: str, shown: str) -> None:
    assert visible(wrote) == shown
    assert visible(shown) == shown


def test_no_character_of_any_kind_is_left_to_be_obeyed() -> None:
    everything = visible("".join(map(chr, range(0x110000))))
    kinds = {c for c in everything if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    assert kinds == {"\n", "\t"}
    assert not {c for c in everything if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "LRI", "RLI")}
