"""A real demo, and its page in a real Chromium: `python -m tests.page.picture --out DIR` (two minutes).

Keeps a picture of each moment in DIR. `--easy` as for the demo: then etcd can be reached from here, and what `supervisor top` prints is
kept as well, and what etcd held when the allocation was taken (demo.json.gz, for test_demo.py).
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

from supervisor.shell.dev.home import endpoints_of
from supervisor.shell.etcd import connect
from supervisor.shell.web.watcher import clock_in
from supervisor.wire import keys
from tests.helpers import browser as browsers
from tests.helpers.browser import Browser
from tests.helpers.waiting import eventually

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
"""Name of each picture, and when it is taken, in this order. `page` is the README's: a group is lost, and the other trains on."""

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
    """It has come, and the page is opened anew."""
    browser.eventually(TOLD.format(when), WITHIN_S)
    browser.open(url, **SIZE)
    browser.eventually("document.getElementById('word')?.textContent.startsWith('live')")


@contextlib.contextmanager
def demo(home: Path, easy: bool, log: Path) -> Iterator[str]:
    """`supervisor demo`, and where its page is. It is waited for, or interrupted if something is wrong."""
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
    """What `supervisor top` prints."""
    command = [sys.executable, "-m", "supervisor.cli", "top", "--home", str(home)]
    with path.open("w") as file:
        subprocess.run(command, stdout=file, stderr=file, check=False)


def keep(path: Path, home: Path, url: str) -> None:
    """What etcd holds, and what the page knows beside it."""
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
