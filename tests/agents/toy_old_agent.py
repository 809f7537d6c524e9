"""An agent of before there were pings: it lives and says nothing."""

import signal

signal.pause()
