"""A file system whose server can be stopped: its users then wait, as on a storage that is away. bindfs serves a folder
over FUSE; it needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.ports.errors import Fatal

DONE_WITHIN_S = 10.0

# the number of the system call `read` on x86-64 and on arm64 (Linux, include/uapi/asm-generic/unistd.h)
READ = ("0", "63")


class FileSystem:
    """Mounted at `folder`."""

    def __init__(self, folder: Path, server: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self._server = server

    def stall(self) -> None:
        """Makes it answer no one. Its waiting users can be killed, except those whose request the server has taken:
        Linux lets not even a killed one go (fs/fuse/dev.c, request_wait_answer). So the server is stopped where it has
        no request. Raises Fatal when it does not come to that within `DONE_WITHIN_S`."""
        until = time.monotonic() + DONE_WITHIN_S
        while time.monotonic() < until:
            read = _bytes_read(self._server.pid)
            if _waits_for_a_request(self._server.pid):
                self._server.send_signal(signal.SIGSTOP)
                _until_stopped(self._server, until)
                if _bytes_read(self._server.pid) == read:
                    return
                self.answer()
            time.sleep(0.001)
        raise Fatal(f"bindfs at {self.folder} has been at a request whenever it was looked at, for {DONE_WITHIN_S:g} s")

    def answer(self) -> None:
        """Lets all waiting processes go on."""
        self._server.send_signal(signal.SIGCONT)


def missing() -> str:
    """The reason that none can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "not root"
    absent = [command for command in ("bindfs", "setpriv", "umount") if shutil.which(command) is None]
    if absent:
        return f"no `{absent[0]}` command (Debian: apt-get install bindfs util-linux mount)"
    return "" if Path("/dev/fuse").exists() else "this kernel has no /dev/fuse"


@contextmanager
def file_system(folder: Path, behind: Path) -> Iterator[FileSystem]:
    """Serves the contents of `behind` at `folder`, and makes both. In the end it answers again and is unmounted, even
    while in use. Raises Fatal where it cannot be made."""
    if why := missing():
        raise Fatal(f"no file system whose server can be stopped: {why}")
    for path in (folder, behind):
        path.mkdir(parents=True, exist_ok=True)
    # should we be killed, a stopped server would hold its waiting users for ever
    command = ["setpriv", "--pdeathsig", "KILL", "bindfs", "-f", str(behind), str(folder)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _until_mounted(folder, server)
        yield FileSystem(folder, server)
    finally:
        server.send_signal(signal.SIGCONT)
        _unmount(folder)
        server.terminate()
        try:
            server.wait(DONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        assert server.stderr is not None
        server.stderr.close()


def _until_stopped(server: subprocess.Popen[bytes], until: float) -> None:
    """Raises Fatal when it is not stopped by `until`, a time of the monotonic clock."""
    while os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOHANG) is None:
        if time.monotonic() > until:
            raise Fatal(f"bindfs, pid {server.pid}, does not stop")
        time.sleep(0.001)


def _waits_for_a_request(pid: int) -> bool:
    """True if a bindfs, of one thread as it is by default, sleeps in a read of the next request."""
    call = Path(f"/proc/{pid}/syscall").read_text().split()
    return call[0] in READ and Path(f"/proc/{pid}/fd/{int(call[1], 16)}").readlink() == Path("/dev/fuse")


def _bytes_read(pid: int) -> int:
    """Bytes read by all the read calls of a process that have come back."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def _until_mounted(folder: Path, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + DONE_WITHIN_S
    while not os.path.ismount(folder):
        if server.poll() is not None:
            assert server.stderr is not None
            raise Fatal(f"bindfs does not serve {folder}: {server.stderr.read().decode(errors='replace').strip()}")
        if time.monotonic() > until:
            raise Fatal(f"bindfs has not served {folder} within {DONE_WITHIN_S:g} s")
        time.sleep(0.01)


def _unmount(folder: Path) -> None:
    """Unmounts it, even while something is open there: it goes with its last user."""
    if subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode != 0:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)
