"""The certificate's page in a real Chromium: a person reads it at 1200 px without scrolling sideways. So is that of
`make parity`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import parity
from fault_injection.chaos import certificate
from fault_injection.checkers.consistency import Verdict
from fault_injection.checkers.recovery import ALL
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Site
from fault_injection.parity.twin import unknown
from tests.helpers.browser import Browser
from tests.system.page.test_page import keep
from tests.unit.benchmarks.test_parity import result
from tests.unit.fault_injection.broken import KILL, LOSE, a_broken_run

WIDTH = 1200

LONG = (
    "/home/somebody/experiments/2026/runs/chaos/checkpoints/step-900.g0.gen12/__0_0.distcp is cut off in its middle, all ranks "
    "killed: they went on from step 875, the one before it"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the certificate of a run with every fault of the catalogue, among them its two real ones."""
    folder = tmp_path_factory.mktemp("certificate")
    history = a_broken_run(folder)
    assert history.setting is not None
    names = [name for name, fault in FAULTS.items() if not fault.why_not(Site())]
    began, ended = history.setting.began, history.setting.ended
    history.faults = [
        replace(
            KILL if n % 2 else LOSE,
            number=n,
            name=name,
            step=1000 + n,
            evidence=LONG,
            began=began + n * (ended - began) / 60,
        )
        for n, name in enumerate(names, 1)
    ]
    history.faults[0] = replace(history.faults[0], made=None, evidence="", after="group 1 is starting after 148 s")
    # two at once, as in a compound
    history.faults[20] = replace(history.faults[20], began=history.faults[19].began + 0.001)
    history.setting = replace(history.setting, plan=tuple(names), planned=len(names))
    verdicts = [Verdict(name, "pass", ()) for name in ALL]
    body = certificate.build(
        history, verdicts, {**unknown(""), "answer": "pass", "why": "17 steps have the loss of a twin"}
    )
    (folder / "report.html").write_text(certificate.page(history, body))
    return f"file://{folder / 'report.html'}"


def opened(browser: Browser, url: str) -> Browser:
    browser.open(url, WIDTH, 900)
    browser.eventually("document.readyState === 'complete' && document.querySelector('table.faults') !== null")
    return browser


def test_nothing_is_cut_off_or_scrolls_sideways(browser: Browser, url: str) -> None:
    page = opened(browser, url)
    keep(page, "certificate")
    assert page.run("document.documentElement.scrollWidth") <= WIDTH
    assert (
        page.run("Math.max(...[...document.querySelectorAll('table')].map((t) => t.getBoundingClientRect().right))")
        <= WIDTH
    )
    page.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert page.run("document.documentElement.scrollWidth") <= WIDTH, "with the evidence unfolded"


def test_a_fault_is_a_row_of_one_or_two_lines(browser: Browser, url: str) -> None:
    page = opened(browser, url)
    victims = page.run(
        "[...document.querySelectorAll('td.victim')].map((v) => [v.innerText, v.getClientRects().length])"
    )
    assert {lines for _, lines in victims} == {1}
    assert victims[1][0] == "g1 r0 n2"
    heights = page.run(
        "[...document.querySelectorAll('table.faults tr')].slice(2).map((r) => r.getBoundingClientRect().height)"
    )
    assert max(heights) < 60
    assert (
        max(page.run("[...document.querySelectorAll('td.answer strong')].map((v) => v.getClientRects().length)")) == 1
    )
    assert LONG not in page.text("table.faults"), "the evidence is folded"
    assert "it did not happen" in page.text("table.faults")


def test_the_numbers_of_the_faults_in_the_picture_touch_no_other(browser: Browser, url: str) -> None:
    page = opened(browser, url)
    boxes = page.run(
        "[...document.querySelectorAll('svg.time .mark')].map((m) => m.getBoundingClientRect())"
        ".map((r) => [r.left, r.right, r.top, r.bottom])"
    )
    assert len(boxes) == len([fault for fault in FAULTS.values() if not fault.why_not(Site())])
    touching = [
        (n, m)
        for n, a in enumerate(boxes)
        for m, b in enumerate(boxes[:n])
        if a[0] < b[1] and b[0] < a[1] and a[2] < b[3] - 2 and b[2] < a[3] - 2
    ]
    assert touching == []
    first = page.run("document.querySelector('svg.time rect').getBoundingClientRect().top")
    assert max(bottom for *_, bottom in boxes) <= first + 2, "above the lanes"


def test_the_page_of_parity_shows_both_curves_over_their_difference(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(parity.page(result()))
    browser.open(f"file://{tmp_path / 'report.html'}", WIDTH, 900)
    browser.eventually("document.readyState === 'complete' && document.querySelector('table.shares') !== null")
    keep(browser, "parity")
    assert browser.run("document.documentElement.scrollWidth") <= WIDTH
    lines = browser.run(
        "[...document.querySelectorAll('polyline')].map((l) => l.getBoundingClientRect())"
        ".map((r) => [r.left, r.right, r.top, r.bottom].map(Math.round))"
    )
    assert len(lines) == 3
    (left, right, top, bottom), plain, apart = lines
    assert all(abs(a - b) <= 3 for a, b in zip((left, right, top, bottom), plain, strict=True)), "one over the other"
    assert apart[0] == pytest.approx(left, abs=3), "step under step"
    assert apart[2] > bottom
    assert right - left > WIDTH / 2
