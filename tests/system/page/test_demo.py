"""The newcomer's test on etcd's records of a real demo: ten questions, and nothing but the page (docs/PAGE.md).

The record is of the moment at which the third fault, a lost allocation, was seen, or just mended;
`tests/system/page/picture.py` makes it again.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.web.history import History, Point
from supervisor.shell.web.server import serve, url_of
from supervisor.shell.web.watcher import Page
from supervisor.wire import keys
from supervisor.wire.security import Security
from tests.helpers.browser import Browser
from tests.system.page.test_page import LIVE, TEN_QUESTIONS, keep

pytestmark = pytest.mark.timeout(900)

RECORD = Path(__file__).parent / "demo.json.gz"

ANSWERS = {
    "Is it training?": ("#headline", r"Training(: all 2 groups step| on 1 of 2 groups: group 1 )"),
    "Must a person act?": ("#getup-word", "No one needs to act"),
    "Which group was lost?": ("#i2 .what", r"i2: [\w ]+ of group 1, "),
    "When?": ("#i2 summary .small", r"Lost about \d\d:\d\d:\d\d, seen at \d\d:\d\d:\d\d"),
    "Why? What was seen?": ("#i2", r"Why\s+\S+[^\0]*What was seen\s+\S+"),
    "What was done, and what else could have been?": (
        "#i2", r"What was done: rung \d \(\w+\)[^\0]*What each would cost",
    ),
    "Is it over?": ("#i2 .tag", "recovered"),
    "How much time did it cost?": ("#i2 summary .small", r"over after \d+(\.\d)? s"),
    "How does the model do?": ("#loss-now", r"Loss: \d\.\d\d"),
    "What if it happens again?": ("#budgets", r"replace\s+the run\s+\d of 4"),
}  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of that record's page."""
    told = json.loads(gzip.decompress(RECORD.read_bytes()))
    store = MemoryStore()
    for key, value in told["records"].items():
        store.put(key, value.encode())
    page = Page(store, wall=lambda: told["now"])
    page._since = told["since"]
    page._learn("demo", told["clock_at"])
    history = page._histories["demo"] = History()
    for number in sorted(told["history"], key=int):
        at, step, loss, step_s, quorum = told["history"][number]
        history.add(Point(at, step, loss if loss != "" else None, step_s, quorum))
    page.look(Mirror(store.list(keys.PREFIX)))
    page.start()
    server = serve(CollectorRegistry(), page, "127.0.0.1", 0, Security())
    yield url_of(server)
    page.stop()
    server.shutdown()
    server.server_close()


def test_ten_questions_of_a_newcomer_on_a_real_demo(browser: Browser, url: str) -> None:
    assert list(ANSWERS) == list(TEN_QUESTIONS)
    browser.open(url)
    browser.eventually(LIVE)
    keep(browser, "demo")
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    for question, (where, answer) in ANSWERS.items():
        assert re.search(answer, browser.text(where)), (question, browser.text(where))


def test_it_says_where_the_time_went(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.eventually(LIVE)
    word = re.match(r"ETTR (\d+\.\d)%", browser.text("#spent-word"))
    assert word is not None
    shares = re.findall(r" (\d+\.\d)%", browser.text("#spent-list"))
    assert abs(sum(map(float, shares)) - 100) < 1, "all of the time"
    assert 0 < float(word[1]) < 100
