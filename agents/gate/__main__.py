"""`python -m agents.gate`."""

from __future__ import annotations

import sys

from agents.gate.main import main

sys.exit(main())
