"""Makes text that others wrote harmless for a terminal: characters that it would obey are shown instead."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""Colours, which are left out: they carry no words, and TorchTitan's lines are full of them."""

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but the tab and the line's end, among them ESC and the C1 set
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # what turns the direction of a line, or ends it
    "\ud800-\udfff]"  # halves of a pair: bytes that are no UTF-8
)


def visible(text: str) -> str:
    """Returns the text with one sign in place of each character that a terminal obeys: ESC is shown as `␛`, a lone byte
    as `�`.

    Lines, tabs and all other characters stay, so the result is as long as the text without its colours. Takes linear
    time.
    """
    return _OBEYED.sub(_sign, _COLOUR.sub("", text))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
