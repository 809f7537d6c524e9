"""The bounds of a plan, which its options and its parser share."""

MOST_FAULTS = 5_000
"""Most faults of a plan. One takes some twenty seconds on a run of two small groups: more than a day is a mistake."""

LAST_STEP = 10**9
"""More steps than any run makes; a rate is counted up to its last."""
