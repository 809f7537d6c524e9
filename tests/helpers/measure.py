"""Prints a measurement as a line that `benchmarks.control_plane` collects. Bounds are checked there, not in tests."""

from __future__ import annotations

import json


def measured(what: str, seconds: float, **about: object) -> None:
    """Prints one measurement: `what` names the quantity; `about` is kept with it."""
    print(f"\nMEASURED {json.dumps({'what': what, 'seconds': round(seconds, 3), **about})}", flush=True)
