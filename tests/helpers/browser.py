"""A real Chromium, driven over a pipe by the DevTools protocol: no driver, no library."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fault_injection.testbed.waiting import eventually

BINARY = "chromium-headless-shell"

ANSWER_S = 30.0
"""A busy machine takes seconds to start a tab."""


def missing() -> str:
    """The reason that there is no browser; empty: there is one."""
    return "" if shutil.which(BINARY) else f"needs {BINARY} (as root: apt-get install {BINARY})"


class Browser:
    """One tab. Every call raises AssertionError when the browser does not answer."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = to, of
        self._buffer = b""
        self._last = 0
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    def open(self, url: str, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Opens the page, as on a screen of this size."""
        self.screen(width, height, dark)
        self._call("Page.navigate", url=url)

    def screen(self, width: int, height: int, dark: bool = False) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """The visible text there; empty where there is nothing."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def eventually(self, script: str, deadline_s: float = 20.0) -> Any:
        """Waits until an expression is true; returns its value."""
        return eventually(lambda: self.run(script), deadline_s, script)

    def press(self, key: str) -> None:
        """Presses a key, by its name in the DOM."""
        codes = {
            "Tab": 9,
            "Enter": 13,
            " ": 32,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "ArrowLeft": 37,
            "End": 35,
            "Home": 36,
        }
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self._call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": "\r"} if key == "Enter" else {}))
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def roles(self) -> list[tuple[str, str]]:
        """(role, name) of everything that assistive software sees."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (n["role"]["value"], n.get("name", {}).get("value", ""))
            for n in nodes
            if not n.get("ignored") and "role" in n
        ]

    def picture(self, path: Path, whole: bool = True) -> None:
        """Writes a PNG of the page."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._last, "method": method, "params": parameters, **session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_S
        while True:
            while b"\0" in self._buffer:
                one, _, self._buffer = self._buffer.partition(b"\0")
                body = json.loads(one)
                if body.get("id") == self._last:
                    assert "error" not in body, (method, body["error"])
                    found: dict[str, Any] = body["result"]
                    return found
            ready, _, _ = select.select([self._of], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser does not answer to {method} within {ANSWER_S:g} s"
            came = os.read(self._of, 1 << 20)
            assert came, f"the browser has ended ({method})"
            self._buffer += came


def _above(fd: int) -> int:
    """A duplicate of the descriptor, above the numbers that the browser's own are moved to."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return moved


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Chromium in a profile of its own, ended on the way out."""
    there, to = (_above(fd) for fd in os.pipe())
    of, back = (_above(fd) for fd in os.pipe())
    process = subprocess.Popen(
        # fds 3 and 4 are what --remote-debugging-pipe reads and writes
        ["bash", "-c", f'exec "$0" "$@" 3<&{there} 4>&{back}', BINARY, "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
         "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(there, back), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(there)
    os.close(back)
    try:
        yield Browser(to, of)
    finally:
        # it ends when its pipe does
        os.close(to)
        os.close(of)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
        # Debian's is a script that waits for the browser: the whole session, which is ours
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10.0)
