"""Warm starts on a machine with an NVIDIA GPU."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here")


@pytest.mark.parametrize("module", ["titan_actor.warm", "fault_injection.in_rank.warm"])
def test_the_warm_process_keeps_off_the_driver_and_what_it_forks_uses_the_gpu(module: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        command = [sys.executable, "-m", module, "--fd", str(theirs.fileno())]
        warm = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        try:
            ours.settimeout(300)
            said = json.loads(ours.recv(65536))
            assert said.get("ready"), said
            assert (said["threads"], said["cuda"], said["gpu"]) == (1, False, True)
            files = [str(fd.readlink()) for fd in Path(f"/proc/{warm.pid}/fd").iterdir()]
            assert not [name for name in files if "nvidia" in name]
        finally:
            warm.kill()
            warm.wait()
