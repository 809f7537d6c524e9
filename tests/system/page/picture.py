"""Takes pictures of a real demo's page in a real Chromium: `python -m tests.system.page.picture --out DIR` (two minutes).

Keeps a picture of each moment in DIR. With `--easy`, as for the demo, etcd can be reached from here. Then the output of
`supervisor top` is kept as well, and etcd's records when the allocation was taken (demo.json.gz, for test_demo.py).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fault_injection.testbed.waiting import eventually
from supervisor.shell.dev.home import endpoints_of
from supervisor.shell.etcd import connect
from supervisor.shell.web.watcher import clock_in
from supervisor.wire import keys
from tests.helpers import browser as browsers
from tests.helpers.browser import Browser

WITHIN_S = 900.0
SIZE = {"width": 1160, "height": 1450}

MOMENTS = {
    "training": "state.numbers?.step >= 12",
    "killed": "state.incidents?.i1?.open",
    "mended": "state.incidents?.i1?.state === 'recovered'",
    "page": "state.incidents?.i2?.kind === 'node_lost' && state.groups['1'].worst !== 'h'",
    "replaced": "state.incidents?.i2?.state === 'recovered'",
    "taken": "state.incidents?.i3?.open",
}
"""Names of the pictures, and when each is taken, in order. `page` is the README's: a group is lost, the other
trains."""

TOLD = "new Promise((r) => setTimeout(r, 250)).then(() => fetch('snapshot.json')).then((r) => r.json()).then((state) => Boolean({}))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--easy", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "runs"
        with (
            demo(home, given.easy, given.out / "demo.log") as url,
            browsers.browser(Path(folder) / "profile") as browser,
        ):
            browser.open(url, **SIZE)
            for name, when in MOMENTS.items():
                moment(browser, url, when)
                browser.picture(given.out / f"{name}.png")
                if given.easy and name == "taken":
                    keep(given.out / "demo.json.gz", home / "demo", url)
                if given.easy:
                    told(given.out / f"{name}.txt", home / "demo")
                print(
                    f"{time.strftime('%T')} {name}: {browser.text('#headline')} {browser.text('#spent-word')}",
                    flush=True,
                )
            gone = "document.getElementById('word')?.textContent.startsWith('no update since')"
            browser.eventually(gone, WITHIN_S)
            browser.picture(given.out / "gone.png")
            print(f"{time.strftime('%T')} gone: {browser.text('#headline')} {browser.text('#spent-word')}", flush=True)


def moment(browser: Browser, url: str, when: str) -> None:
    """Waits until the moment has come, and opens the page again."""
    browser.eventually(TOLD.format(when), WITHIN_S)
    browser.open(url, **SIZE)
    browser.eventually("document.getElementById('word')?.textContent.startsWith('live')")


@contextlib.contextmanager
def demo(home: Path, easy: bool, log: Path) -> Iterator[str]:
    """Runs `supervisor demo` and yields its page's address; waits for it, or interrupts it if something is wrong."""
    command = [sys.executable, "-m", "supervisor.cli", "demo", "--home", str(home), *(["--easy"] if easy else [])]
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            found = eventually(lambda: re.search(r"browser: (http\S+)", log.read_text()), 60.0, log.read_text())
            yield found[1]
            process.wait(WITHIN_S)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def told(path: Path, home: Path) -> None:
    """Writes the output of `supervisor top`."""
    command = [sys.executable, "-m", "supervisor.cli", "top", "--home", str(home)]
    with path.open("w") as file:
        subprocess.run(command, stdout=file, stderr=file, check=False)


def keep(path: Path, home: Path, url: str) -> None:
    """Keeps etcd's records, and the page's own knowledge beside them."""
    store = connect([endpoints_of(home)])
    try:
        items = store.list(keys.PREFIX).items
    finally:
        store.close()
    with urllib.request.urlopen(f"{url}snapshot.json", timeout=10) as answer:
        page: dict[str, Any] = json.load(answer)
    body = {
        "now": page["now"],
        "since": page["since"],
        "clock_at": clock_in(home / "journal.jsonl"),
        "history": page["history"],
        "records": {item.key: item.value.decode() for item in items},
    }
    path.write_bytes(gzip.compress(json.dumps(body, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
