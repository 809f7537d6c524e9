"""The page in a real Chromium: on desk and phone, by light and dark, by keyboard, and when its supervisor dies."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.shell.web.calls import STILL_S
from supervisor.wire import keys
from tests.helpers.browser import Browser
from tests.helpers.relay import relay
from tests.system.page.site import Site, halted, hurt, many, paused, site, stuck, trained

pytestmark = pytest.mark.timeout(900)

LIVE = "document.getElementById('word')?.textContent.startsWith('live')"

CONTRAST = """(() => {
  const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parse = (s) => s.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (e) => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; }
    return parse(getComputedStyle(document.documentElement).colorScheme.includes('dark') ? 'rgb(18,18,18)' : 'rgb(255,255,255)');
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !e.getClientRects().length || e.closest('noscript, script')) continue;
    const style = getComputedStyle(e), ink = light(parse(e.closest('svg') ? style.fill : style.color)), paper = light(behind(e));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    found.push([Math.round(ratio * 100) / 100, e.tagName + '.' + e.className + ': ' + texts.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
})()"""


TEN_QUESTIONS = {
    "Is it training?": ("#headline", "Training on 3 of 4 groups: group 3 starting"),
    "Must a person act?": ("#getup-word", "No one needs to act"),
    "Which group was lost?": ("#i2 .what", "i2: node lost of group 2, on node n3"),
    "When?": ("#i2 summary .small", r"Lost about \d\d:\d\d:\d\d, seen at \d\d:\d\d:\d\d"),
    "Why? What was seen?": ("#i2", r"Why\s+its node is gone[^\0]*What was seen\s+the lease of node n3 \(5 s\) lapsed"),
    "What was done, and what else could have been?": (
        "#i2", r"What was done: rung 2 \(replace\)[^\0]*What each would cost",
    ),
    "Is it over?": ("#i2 .tag", "recovered"),
    "How much time did it cost?": ("#i2 summary .small", r"over after \d+(\.\d)? s"),
    "How does the model do?": ("#loss-now", r"Loss: \d\.\d\d"),
    "What if it happens again?": ("#budgets", r"replace\s+the run\s+3 of 4"),
}  # fmt: skip
"""The questions of docs/PAGE.md: where the answer is, and its text in the run of `broken`."""


@pytest.fixture(scope="module")
def broken() -> Iterator[Site]:
    """A run in which three groups were lost, one of them just now."""
    with site(trained()) as made:
        hurt(made)
        made.live()
        yield made


@pytest.fixture
def shown(browser: Browser, broken: Site) -> Browser:
    browser.open(broken.url)
    browser.eventually(LIVE)
    return browser


def keep(browser: Browser, name: str) -> None:
    """Keeps the picture where SCREENSHOTS=DIR is set."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.picture(Path(folder) / f"{name}.png")


def test_the_three_questions_are_answered_at_the_top(shown: Browser) -> None:
    assert shown.text("h1") == "Run run"
    assert shown.text("#headline").startswith("Training on 3 of 4 groups: group 3 ")
    assert shown.text("#getup-word").startswith("No one needs to act")
    numbers = shown.text("#numbers")
    for words in ("3 of 4 groups, id ", "pid 41 on host, epoch ", "open, on node host ("):
        assert words in numbers
    assert shown.run("document.title") == "! run"
    top = shown.run("document.getElementById('getup').getBoundingClientRect().bottom")
    assert top < 400, "without scrolling"
    keep(shown, "desk-light")


def test_ten_questions_of_a_newcomer(shown: Browser) -> None:
    rows = re.findall(r"^\| (.*?\?) \|", (Path(__file__).parents[3] / "docs" / "PAGE.md").read_text(), re.MULTILINE)
    assert rows == list(TEN_QUESTIONS)
    shown.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    for question, (where, answer) in TEN_QUESTIONS.items():
        assert re.search(answer, shown.text(where)), (question, shown.text(where))


def test_each_group_and_rank_has_its_sign_and_its_word(shown: Browser) -> None:
    rows = shown.run("[...document.querySelectorAll('#groups tbody tr')].map((r) => r.innerText.replace(/\\s+/g, ' '))")
    assert len(rows) == 4
    assert rows[0].startswith("Group 0 ✓ ✓ ✓ ✓ healthy n1 1 "), rows[0]
    assert "i3" in rows[3]
    signs = shown.run("[...document.querySelectorAll('#groups .r')].map((r) => r.getAttribute('aria-label'))")
    assert len(signs) == 16
    assert signs[0] == "rank 0 healthy"
    legend = shown.text("#legend")
    assert all(w in legend for w in ("healthy", "slow", "hung", "dead", "unknown", "starting", "waiting", "ended"))


def test_incidents_are_told_with_their_reasons_the_open_one_first(shown: Browser) -> None:
    ids = shown.run("[...document.querySelectorAll('#incidents-list > li')].map((li) => li.id)")
    assert ids == ["i3", "i2", "i1"]
    opened = shown.text("#i3")
    for words in (
        "open",
        "error of group 3, rank 1",
        "Decided: rung 1 (restart)",
        "Why",
        "What was seen",
        "The traceback",
    ):
        assert words in opened, words
    assert "encountered <b>&amp;" in shown.text("#i3 pre"), "what a trainer wrote is text, never markup"
    assert shown.run("document.querySelectorAll('#i3 b').length") == 0
    assert not shown.run("document.querySelector('#i2 details').open")
    assert "node lost of group 2, on node n3" in shown.text("#i2")
    assert "over after" in shown.text("#i2")
    assert re.match(r"3 so far, 1 open\. They cost \d+ s of group time so far", shown.text("#incidents-sum"))
    shown.run("location.hash = 'i1'")
    shown.eventually("document.querySelector('#i1 details').open")


def test_charts_have_their_lines_marks_and_words(shown: Browser) -> None:
    for chart in ("loss", "time"):
        assert shown.run(f"document.querySelector('#{chart} polyline').getAttribute('points').split(' ').length") > 100
        assert shown.run(f"[...document.querySelectorAll('#{chart} .mark-text')].map((t) => t.textContent)") == [
            "i1", "i2", "i3",
        ]  # fmt: skip
    label = shown.run("document.getElementById('loss').getAttribute('aria-label')")
    assert label.startswith("Loss from 7.")


def test_where_the_time_went(shown: Browser) -> None:
    assert shown.text("#spent-word").startswith("ETTR 93.7%: this share of 18 min 6 s of group time")
    said = shown.run("[...document.querySelectorAll('#spent-list li')].map((li) => li.innerText)")
    assert said[:2] == ["trained the model 93.7% (16 min 58 s)", "waiting for nodes 2.6% (28 s)"]
    assert said[-1].startswith("the rest ")
    wide, parts = shown.run(
        "[document.getElementById('spent-bar').getBoundingClientRect().width, "
        "[...document.querySelectorAll('#spent-bar span')].map((s) => s.getBoundingClientRect().width)]"
    )
    assert abs(sum(parts) - wide) < 0.005 * wide, "all of the time"
    assert parts == sorted(parts[:-1], reverse=True) + parts[-1:]


def test_it_is_live(shown: Browser, broken: Site) -> None:
    before = int(shown.run("state_step = document.querySelector('#numbers dd').textContent.replace(',', '')"))
    shown.run("document.querySelector('#i1 details').open = true")
    shown.run("document.querySelector('#i1 summary').focus()")
    broken.world.train(broken.world.step + 2)
    shown.eventually(f"Number(document.querySelector('#numbers dd').textContent.replace(',', '')) === {before + 2}")
    assert shown.run("document.querySelector('#i1 details').open"), "what a person has opened stays open"
    assert shown.run("document.activeElement === document.querySelector('#i1 summary')"), "and the focus where it is"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_of_it_can_be_read(browser: Browser, broken: Site, dark: bool) -> None:
    browser.open(broken.url, dark=dark)
    browser.eventually(LIVE)
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is not dark
    found = browser.run(CONTRAST)
    assert len(found) > 100
    faint = [one for one in found if one[0] < 4.5]
    assert not faint
    keep(browser, f"desk-{'dark' if dark else 'light-open'}")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone(browser: Browser, broken: Site, dark: bool) -> None:
    browser.open(broken.url, width=360, height=740, dark=dark)
    browser.eventually(LIVE)
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert browser.run("document.scrollingElement.scrollWidth") <= 360
    small = browser.run(
        "[...document.querySelectorAll('body *')].filter((e) => e.getClientRects().length && "
        "parseFloat(getComputedStyle(e).fontSize) < 11).map((e) => e.tagName)"
    )
    assert small == []
    outside = browser.run(
        "[...document.querySelectorAll('main *')].filter((e) => !e.closest('pre, svg, .scroll') && e.getClientRects().length && "
        "e.getBoundingClientRect().right > 361).map((e) => e.tagName + e.className)"
    )
    assert outside == []
    keep(browser, f"phone-{'dark' if dark else 'light'}")


def test_by_keyboard(shown: Browser) -> None:
    stops = []
    for _ in range(12):
        shown.press("Tab")
        stops.append(
            shown.run("(document.activeElement.innerText || document.activeElement.className).split('\\n')[0]")
        )
    assert stops[0] == "Skip to the incidents"
    assert "i3" in stops
    summary = shown.run("document.activeElement.tagName")
    shown.run("document.querySelector('#i2 summary').focus()")
    shown.press("Enter")
    assert shown.run("document.querySelector('#i2 details').open")
    outline = shown.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", summary


def test_what_assistive_software_is_told(shown: Browser) -> None:
    roles = shown.roles()
    names = {role: [n for r, n in roles if r == role] for role, _ in roles}
    assert len(names["main"]) == len(names["banner"]) == len(names["contentinfo"]) == 1
    assert names["heading"][:2] == ["Run run", "Groups and ranks"]
    assert {"Loss and step time", "Incidents", "Nodes and spares", "Budgets"} <= set(names["heading"])
    assert set(names["table"]) == {"Groups and ranks", "Nodes and spares", "Budgets"}
    assert {"Group", "Ranks", "State", "Node"} <= set(names["columnheader"])
    assert {"Group 0", "Group 3", "n1", "replace"} <= set(names["rowheader"])
    assert all(name for role in ("image", "link", "region", "listbox") for name in names.get(role, []))


def test_when_its_supervisor_dies_it_says_since_when_and_finds_the_next(browser: Browser) -> None:
    world = trained()
    with site(world) as first:
        world.train(10)
        first.live()
        port = first.server.server_port
        browser.open(first.url)
        browser.eventually(LIVE)
    browser.eventually(
        "/^no update since \\d\\d:\\d\\d:\\d\\d; trying again$/.test(document.getElementById('word').textContent)"
    )
    assert "Training: all 4 groups step." in browser.text("#headline"), "what was known stays"
    said = browser.run("getComputedStyle(document.getElementById('headline'), '::before').content")
    assert said == '"When last heard: "', "and is not told as if it were now"
    assert browser.run("document.title") == "? run"
    keep(browser, "lost")
    with site(world, port) as second:
        second.live()
        world.train(12)
        browser.eventually(LIVE, 30)
        browser.eventually("document.querySelector('#numbers dd').textContent === '12'")
        assert second.server.server_port == port


def test_a_connection_that_carries_nothing_any_more_is_made_anew(browser: Browser) -> None:
    """A firewall, say, has forgotten the connection, and neither end is notified."""
    world = trained()
    with site(world) as made, relay(f"127.0.0.1:{made.server.server_port}") as way:
        world.train(10)
        made.live()
        browser.open(made.url.replace(f":{made.server.server_port}", f":{way.endpoint.rpartition(':')[2]}"))
        browser.eventually(LIVE)
        way.silence()
        world.train(12)
        browser.eventually("document.querySelector('#numbers dd').textContent === '12'", 60)
        browser.eventually(LIVE)


def test_of_a_run_that_cannot_be_read_nothing_old_is_shown(browser: Browser) -> None:
    with site(trained()) as made:
        made.live()
        browser.open(made.url)
        browser.eventually(LIVE)
        assert browser.text("#groups")
        made.world.store.put(keys.memory("run", "run"), b"{")
        browser.eventually("document.getElementById('getup-why').innerText.includes('cannot be read')")
        assert browser.text("#getup-word") == "A person must act now:"
        assert not browser.run("document.getElementById('groups').getClientRects().length")


@pytest.mark.parametrize(
    ("story", "words"), [(paused, "paused: nothing is done"), (halted, "")], ids=["paused", "halted"]
)
def test_when_a_person_has_to_act(browser: Browser, story: object, words: str) -> None:
    with site(trained()) as made:
        assert callable(story)
        story(made)
        made.live()
        browser.open(made.url)
        browser.eventually(LIVE)
        assert browser.text("#getup-word") == "A person must act now:"
        assert words in browser.text("#badges")
        assert browser.run("document.getElementById('now').className") == "bad"
        assert browser.run("document.title") == "✕ run"
        assert "supervisor resume run" in browser.text("#getup-why")
        keep(browser, story.__name__)


def test_where_no_group_steps_a_person_is_called_when_the_alert_calls(browser: Browser) -> None:
    with site(trained()) as made:
        stuck(made)
        browser.open(made.url)
        browser.eventually(LIVE)
        assert browser.text("#headline").startswith("Not training: no group steps")
        assert browser.text("#getup-word").startswith("No one needs to act yet: no step comes (")
        keep(browser, "stuck")
        made.world.now += STILL_S
        made.look()
        browser.eventually("document.getElementById('getup-word').innerText === 'A person must act now:'")
        assert "no step for more than 16 min" in browser.text("#getup-why")
        keep(browser, "stuck-long")


def test_times_name_their_zone(shown: Browser) -> None:
    assert re.fullmatch(r"UTC|\S+, now UTC[+-]\d\d:\d\d", shown.text("#zone"))


def test_many_groups_are_tiles_and_those_that_are_not_well_have_rows(browser: Browser) -> None:
    with site(many()) as made:
        made.live()
        browser.open(made.url)
        browser.eventually(LIVE)
        assert browser.run("document.querySelectorAll('#tiles .r').length") == 300
        rows = browser.run("[...document.querySelectorAll('#groups tbody th')].map((r) => r.textContent)")
        assert rows == ["Group 17", "Group 230"]
        assert browser.run("document.querySelectorAll('#tiles [tabindex=\"0\"]').length") == 1, (
            "one stop for the keyboard"
        )
        browser.run("document.querySelector('#tiles .r').focus()")
        for _ in range(17):
            browser.press("ArrowRight")
        assert browser.text("#tile").startswith("Group 17: dead, its old generation must be")
        browser.press("End")
        assert browser.text("#tile").startswith("Group 299: healthy")
        keep(browser, "many")
        browser.open(made.url, width=360, height=740)
        browser.eventually(LIVE)
        assert browser.run("document.scrollingElement.scrollWidth") <= 360
        keep(browser, "many-phone")
