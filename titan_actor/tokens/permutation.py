"""A keyed permutation of any number of indices, without memory: a Feistel network over a power of two, walked until it
lands among them (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).

Pure. Runs that exist depend on its values: a change here changes the order of their samples.
"""

from __future__ import annotations

from functools import lru_cache

MASK = (1 << 64) - 1

ROUNDS = 8
"""Four suffice for large halves (Luby and Rackoff, 1988); halves of a few bits need more."""


def mix(value: int) -> int:
    """Returns 64 bits that all depend on all 64 bits of a value (the finalizer of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def permute(index: int, count: int, key: int) -> int:
    """Returns the place of an index in the permutation of 0 to count - 1 that a 64-bit key names. Raises ValueError for
    an index outside."""
    if not 0 <= index < count:
        raise ValueError(f"index {index} is not among {count}")
    bits = max(2, (count - 1).bit_length())
    place = _network(index, bits, key)
    while place >= count:
        place = _network(place, bits, key)
    return place


@lru_cache(maxsize=4)
def _keys(key: int) -> tuple[int, ...]:
    return tuple(mix(key + number) for number in range(ROUNDS))


def _network(value: int, bits: int, key: int) -> int:
    """Permutes the numbers below 2 to the power of `bits`. The halves differ by a bit where their number is odd, and swap their
    lengths in each round."""
    low_bits = bits // 2
    high_bits = bits - low_bits
    high, low = value >> low_bits, value & ((1 << low_bits) - 1)
    for each in _keys(key):
        high, low = low, high ^ (mix(each ^ low) & ((1 << high_bits) - 1))
        high_bits, low_bits = low_bits, high_bits
    return high << low_bits | low
