"""An agent of a version without pings: it lives and sends nothing."""

import signal

signal.pause()
