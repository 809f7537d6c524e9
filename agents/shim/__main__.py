"""`python -m agents.shim`."""

from __future__ import annotations

import contextlib
import sys

from agents.shim.main import main

with contextlib.suppress(KeyboardInterrupt):
    sys.exit(main())
