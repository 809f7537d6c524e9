"""Asks the kernel if anything synchronises this machine's clock. For people: no decision compares wall clocks."""

from __future__ import annotations

import ctypes

_STA_UNSYNC = 0x40
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """The first fields of `struct timex` (adjtimex(2)); `rest` only makes room for the others."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maximum_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def kernel_clock() -> tuple[int, int]:
    """Returns adjtimex's answer and its status word; changes nothing. Raises OSError."""
    timex = _Timex()
    answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if answer < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    return answer, timex.status


def synchronised(answer: int, status: int) -> bool:
    """Returns true if the clock is synchronised, by what `kernel_clock` returns."""
    return answer != _TIME_ERROR and not status & _STA_UNSYNC
