"""The certificate of a run: its numbers, its page, and its text when a promise was not kept."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fault_injection.chaos import certificate, curves
from fault_injection.chaos.campaign import summary
from fault_injection.checkers.history_file import load, save
from fault_injection.checkers.recovery import ALL
from fault_injection.parity.twin import parity as twin_parity
from fault_injection.parity.twin import unknown
from supervisor.core.goodput.causes import Cause
from supervisor.shell.history.files import History, Left, Outage, Seen
from tests.unit.fault_injection.broken import a_broken_run, broken, fault
from tests.unit.fault_injection.files import incident, note, step, story
from titan_actor.twin import NoTwin

SAME = {
    **unknown(""),
    "answer": "pass",
    "why": "17 steps have the loss of a fault-free twin, to the last bit",
    "steps": 17,
}


@pytest.fixture
def history(tmp_path: Path) -> History:
    return a_broken_run(tmp_path)


def test_what_it_holds(history: History, tmp_path: Path) -> None:
    body = certificate.write(history, tmp_path, SAME)
    assert json.loads((tmp_path / "report.json").read_text()) == body
    assert body["green"] is True
    assert body["seed"] == 7
    assert body["plan"] == list(history.setting.plan if history.setting else ())
    assert body["not_available"] == {"gpu_xid": "no GPU"}
    assert body["checkers"] == {name: {"answer": "pass", "sentences": []} for name in ALL}
    assert body["ettr"] == pytest.approx(29 / 44, abs=1e-4)
    nobody_noted = {"once": None, "twice": None, "never": None, "twice_at": [], "never_at": []}
    assert body["samples"] == nobody_noted
    assert body["loss_parity"] == SAME
    assert body["steps_committed"] == 17


def test_a_step_that_does_not_say_its_quorum_leaves_a_certificate(tmp_path: Path) -> None:
    files = story(tmp_path)
    for line in files.steps["n1", 0, 1]:
        if line.get("committed"):
            line["quorum_id"] = None
    body = certificate.build(broken(files))
    assert body["green"] is False
    assert body["checkers"]["one_quorum_per_step"]["answer"] == "unknown"


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda line: line.pop(name)


@pytest.mark.parametrize(
    ("plant", "parts"),
    [
        (without("participants"), {"participation", "samples"}),
        (lambda line: line.update(participants=None), {"participation", "samples"}),
        (lambda line: line.update(loss="x"), {"participation", "samples"}),
        (lambda line: line.update(loss=10**400), {"participation", "samples"}),
        (without("t"), {"ettr and badput", "participation", "samples", "fault 1", "fault 2"}),
        (without("step"), {"ettr and badput", "steps_committed", "participation", "samples", "fault 1", "fault 2"}),
    ],
)
def test_what_cannot_be_computed_leaves_a_certificate(
    history: History, tmp_path: Path, plant: Callable[[dict[str, Any]], object], parts: set[str]
) -> None:
    """The values came past the reader. All checkers pass: the certificate is red for its unknown parts."""
    plant(history.of_group(0)[0].committed()[3])
    assert twin_parity(history, lambda _: None)["answer"] == "unknown"
    passed = certificate.build(history, [], SAME)
    assert (set(passed["unknown"]), passed["green"]) == (parts, False)
    body = certificate.write(history, tmp_path, SAME)
    assert json.loads((tmp_path / "report.json").read_text()) == body
    parsed = Page()
    parsed.feed((tmp_path / "report.html").read_text())
    text = " ".join(parsed.text)
    assert "this run is not shown to have kept what is promised" in text
    assert all(f"unknown {part}: it cannot be computed of this history: " in text for part in parts)
    assert not re.search(r"\bNone\b", text)
    said: list[str] = []
    summary(body, history.faults, said.append)
    assert {line.split(": ")[1] for line in said if line.startswith("UNKNOWN: ")} >= parts


def test_a_fault_and_its_times(history: History) -> None:
    kill, lose = certificate.build(history)["faults"]
    assert {key: kill[key] for key in ("number", "name", "group", "rank", "step", "incident", "kind", "rung")} == {
        "number": 1, "name": "sigkill", "group": 1, "rank": 0, "step": 5, "incident": "i1", "kind": "crash", "rung": 1,
    }  # fmt: skip
    assert [kill[f"{key}_s"] for key in ("detected", "decided", "acted", "rejoined", "over")] == [
        0.3,
        0.4,
        0.5,
        3.7,
        3.8,
    ]
    assert (kill["steps_lost"], kill["others_steps"], kill["others_longest_stall_s"]) == (1, 4, 2.0)
    assert [lose[f"{key}_s"] for key in ("detected", "decided", "acted", "rejoined", "over")] == [
        0.15,
        0.25,
        1.25,
        3.95,
        4.05,
    ]


def test_how_long_a_group_healed_and_what_the_control_plane_did(tmp_path: Path) -> None:
    files = story(tmp_path)
    kill = broken(files).faults[0]
    files.steps["n2", 1, 2].insert(1, note("heal", kill.began + 3, step=8, transfer_s=0.25))
    history = broken(files)
    history.seen = [
        Seen(t=kill.began - 1, what="leader", subject="", says={"pid": 1}),
        Seen(t=kill.began + 1, what="leader", subject="", says={"pid": 2}),
    ]
    history.outages = [Outage(start=kill.began + 0.5, end=kill.began + 2)]
    told, later = certificate.build(history)["faults"]
    assert (told["heal_s"], later["heal_s"]) == (0.25, None)
    assert told["control_plane"] == [
        {"what": "another supervisor leads", "after_s": 1.0},
        {"what": "the leader reaches etcd again, 1.5 s later", "after_s": 2.0},
    ]
    assert later["control_plane"] == []
    page = certificate.page(history, certificate.build(history))
    assert "another supervisor leads (1.00)" in page
    assert '<td class="n">0.25</td>' in page


def test_steps_that_a_resume_from_disk_threw_away_are_lost(tmp_path: Path) -> None:
    """Group 1 was killed at 10.5 s; then both went on from step 5, of 8 that were committed."""
    files = story(tmp_path)
    kill = certificate.build(broken(files))["faults"][0]
    for lines in files.steps.values():
        for line in lines:
            if line["event"] == "step" and line["t"] > 13.5:
                line["step"] -= 3
    told = certificate.build(broken(files))["faults"]
    assert [row["steps_lost"] for row in told] == [kill["steps_lost"] + 3, 0]


def test_the_curve_has_the_newest_loss_of_a_step_that_is_made_again(history: History) -> None:
    """The files may have any order: the older generation's may be read last."""
    for steps in history.steps:
        for line in steps.lines:
            line["loss"] = float(line["t"])
            if line.get("event") == "step" and line["t"] > history.faults[0].began + 3:
                line["step"] -= 6
    first = certificate.loss_curve(history)
    history.steps.sort(key=lambda steps: (steps.group, -steps.generation))
    assert certificate.loss_curve(history) == first


def test_a_halt_and_what_ended_it_are_told(tmp_path: Path) -> None:
    files = story(tmp_path)
    row = certificate.build(broken(files))["faults"][0]
    assert (row["halted_s"], row["resumed_s"], row["rejoined_s"]) == (None, None, 3.7)
    files.decide(12.0, 21, {0: 1, 1: 2}, [], [incident("i1", "crash", 1, 1, 2, "halted", rung=4)])
    files.decide(14.05, 22, {0: 1, 1: 2}, [{"verb": "resume", "key": "resume:1", "reason": "r"}])
    files.journal.sort(key=lambda entry: entry["t"])
    history = broken(files)
    row = certificate.build(history)["faults"][0]
    assert (row["halted_s"], row["resumed_s"], row["rejoined_s"]) == (1.6, 3.65, 4.5)
    assert "run halted after 1.60 s, resumed by a person after 3.65 s" in " ".join(page(history).text)


def test_one_about_which_nothing_was_to_be_done(history: History) -> None:
    fault(history, 1, name="hiccup", kinds=())
    row = certificate.build(history)["faults"][0]
    assert (row["incident"], row["rung"], row["detected_s"], row["right"]) == (None, None, None, "none")
    assert row["rejoined_s"] == 3.5, "the first step that its group began since"


def test_each_incident_is_in_it(tmp_path: Path) -> None:
    """The page has another group's echoes of a fault, and silences that were ridden through. It has no group that is
    left out, and nothing undecided."""
    files = story(tmp_path)
    files.decide(11.0, 21, {0: 1, 1: 2}, [], [incident("i8", "error", 0, 1, 2, "acting")])
    files.decide(11.1, 22, {0: 1, 1: 2}, [], [incident("i9", "silent", 1, 2, 2, "acting", rung=0, decided=1.1)])
    files.decide(11.2, 23, {0: 1, 1: 2}, [], [incident("i9", "silent", 1, 2, 2, "recovered", rung=0, decided=1.1)])
    files.decide(11.3, 24, {0: 1, 1: 3}, [], [incident("i7", "crash", 1, 2, 3, "acting", rung=0, decided=1.3)])
    files.decide(11.4, 25, {0: 1, 1: 3}, [], [incident("i6", "crash", 0, 1, 1, "open", rung=0)])
    files.journal.sort(key=lambda entry: entry["t"])
    history = broken(files)
    fault(history, 1, echoes=("error",))
    body = certificate.build(history)
    assert [row["echoes"] for row in body["faults"]] == [[{"incident": "i8", "kind": "error", "group": 0}], []]
    assert body["ridden_through"] == [{"incident": "i9", "kind": "silent", "group": 1}]
    text = " ".join(page(history).text)
    assert "and i8 error of group 0" in text
    assert "i9 silent of group 1: nothing was to be done, the others went on." in text


def test_times_are_of_the_incident_that_is_named(tmp_path: Path) -> None:
    """Another incident of the same group was opened first, and nothing was done about it."""
    files = story(tmp_path)
    files.decide(10.55, 20, {0: 1, 1: 1}, [], [incident("i0", "straggler", 1, 1, 1, "recovered", rung=0, decided=0.55)])
    files.journal.sort(key=lambda entry: entry["t"])
    row = certificate.build(broken(files))["faults"][0]
    assert row["incident"] == "i1"
    assert [row[f"{key}_s"] for key in ("detected", "decided", "acted", "rejoined")] == [0.3, 0.4, 0.5, 3.7]


def test_a_restart_that_was_asked_for_was_seen_by_nobody(tmp_path: Path) -> None:
    files = story(tmp_path)
    for told in (i for entry in files.journal for i in entry.get("incidents", ()) if i["id"] == "i1"):
        told["kind"] = "requested"
    history = broken(files)
    fault(history, 1, name="slow_step", kinds=("requested",))
    row = certificate.build(history)["faults"][0]
    assert (row["incident"], row["kind"], row["detected_s"], row["decided_s"]) == ("i1", "requested", None, 0.4)


def test_who_took_part_in_how_many_steps(tmp_path: Path) -> None:
    files = story(tmp_path)
    history = broken(files)
    # both: 1 to 5, 9 to 13, 16, 17; group 0 alone: 6, 7, 8, 14, 15
    assert certificate.participation(history) == {"1": 5, "2": 12}
    assert "17 steps committed: 5 by 1 group, 12 by 2 groups" in " ".join(" ".join(page(history).text).split())
    files.steps["n3", 1, 3][2].update(participating_rank=None, quorum_id=6, participants=1)
    assert certificate.participation(broken(files)) == {"1": 6, "2": 11}, "who heals has no part"


def test_which_samples_were_used(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.steps["n2", 1, 2] = [
        note("batch", 12.5, samples=["a", "b"]), step(12.0, 13.0, 9),
        note("batch", 13.5, samples=["c"]), step(13.0, 14.0, 9, committed=False),
        note("batch", 14.5, samples=["d"]), note("batch", 14.6, samples=["e"]), step(14.0, 15.0, 10),
        note("batch", 15.5, samples=["f", "g"]),
    ]  # fmt: skip
    files.steps["n3", 1, 3] = [note("batch", 20.5, samples=["e", "f"]), step(20.0, 21.0, 16)]
    history = broken(files)
    # a b d f; e; c, which was tried again, and g, at which it was killed
    assert certificate.samples(history) == {"once": 4, "twice": 1, "never": 2, "twice_at": [16], "never_at": [10, 11]}
    text = " ".join(" ".join(page(history).text).split())
    assert "4 samples used once 1 more often 2 in no committed step" in text


def test_who_only_heals_uses_no_sample(tmp_path: Path) -> None:
    files = story(tmp_path)
    healing = step(20.0, 21.0, 16, participating_rank=None)
    files.steps["n3", 1, 3] = [note("batch", 20.5, samples=["a"]), healing]
    counts = certificate.samples(broken(files))
    assert (counts["once"], counts["never"], counts["never_at"]) == (0, 1, [16])


PARITY = {"answer": "fail", "why": "step 3 has a loss of 8.2500, and 7.0000 in a fault-free twin", "tolerance": 0.001, "steps": 4, "no_twin": "",
          "greatest": {"difference": 1.25, "step": 3, "run": 8.25, "twin": 7.0}, "states": {"equal": 1, "of": 2, "first_other": 4},
          "curve": [[1, 8.75], [2, 8.5], [3, 7.0], [4, 3.0]]}  # fmt: skip


def test_loss_parity_is_in_the_report_and_drawn(history: History, tmp_path: Path) -> None:
    body = certificate.write(history, tmp_path, PARITY)
    assert body["loss_parity"] == PARITY
    assert body["green"] is False, "it is not the same model"
    gpus = {**PARITY, "answer": "unknown", "no_twin": "device"}
    assert certificate.build(history, parity=gpus)["green"] is True, "not every run can have one"
    assert certificate.build(history, parity={**PARITY, "answer": "unknown"})["green"] is False
    assert certificate.build(history)["green"] is False, "nobody trained one"
    parsed = Page()
    parsed.feed((tmp_path / "report.html").read_text())
    text = " ".join(parsed.text)
    assert "this run is not shown to have kept what is promised" in text
    assert "loss parity: step 3 has a loss of 8.2500, and 7.0000 in a fault-free twin" in text
    assert "After 1 of 2 steps that were hashed" in text
    assert "the same to the last bit; the first after which they are not is 4." in text
    run, of_twin = (
        [tuple(map(float, p.split(","))) for p in str(line["points"]).split()] for line in parsed.tags["polyline"]
    )
    assert (len(run), len(of_twin)) == (17, 4)
    assert run[:2] == of_twin[:2]
    assert of_twin[2][1] > run[2][1], "a lower loss is drawn lower"
    assert of_twin[3][1] == 150.0, "all is in the box"


def test_a_parity_that_is_unknown_is_in_the_verdict(history: History) -> None:
    gpus = unknown("the run trained on cuda", NoTwin.DEVICE)
    for parity, is_green in ((unknown("the twin failed: no room"), False), (gpus, True)):
        body = certificate.build(history, parity=parity)
        box = certificate.page(history, body).split('<div class="verdict')[1].split("</div>")[0]
        assert f"loss parity: {parity['why']}" in box
        assert ("not shown to have kept what is promised" in box, body["green"]) == (not is_green, is_green)


def test_it_is_the_same_from_the_file(history: History, tmp_path: Path) -> None:
    save(history, tmp_path / "history.jsonl")
    again = load(tmp_path / "history.jsonl")
    assert certificate.build(again) == certificate.build(history)
    assert certificate.page(again, certificate.build(again)) == certificate.page(history, certificate.build(history))


class Page(HTMLParser):
    """The text that a browser would show, and the files that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: dict[str, list[dict[str, str | None]]] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.setdefault(tag, []).append(dict(attributes))
        if tag not in ("meta", "rect", "line", "polyline", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.text.append(" ".join(data.split()))


def page(history: History) -> Page:
    parsed = Page()
    parsed.feed(certificate.page(history, certificate.build(history, parity=SAME)))
    assert parsed.open == [], "every element is closed"
    return parsed


def test_the_page_loads_nothing_and_runs_nothing(history: History) -> None:
    parsed = page(history)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    assert not any("href" in a or "src" in a for tags in parsed.tags.values() for a in tags)


def test_the_page_says_what_the_report_says(history: History) -> None:
    text = " ".join(page(history).text)
    assert f"{len(ALL)} of {len(ALL)} checkers pass." in text
    assert "2 of 2 planned faults were made in 22 s on 2 groups of 1" in text
    assert "65.9 % effective training time" in text
    assert "SIGKILL to pid 101, which has ended" in text
    assert "gpu_xid no GPU" in text
    assert "100.00 %" in text, "ETTR and badput are everything"
    assert all(name in text for name in ALL)


def test_a_fault_that_was_not_made_is_not_counted(history: History) -> None:
    fault(history, 2, made=None, evidence="")
    assert "1 of 2 planned faults were made" in " ".join(page(history).text)


def test_the_page_of_one_that_was_not_kept(history: History) -> None:
    history.left = Left(processes=("run.1.2.0 (pid 102) on n2",), allocations=())
    fault(history, 2, over=None, after="group 1 is <starting> after 10 s")
    text = " ".join(page(history).text)
    assert "this run is not shown to have kept what is promised" in text
    assert "a process is left: run.1.2.0 (pid 102) on n2" in text
    assert "group 1 is <starting> after 10 s" in text, "escaped, and shown as it was said"


def test_the_picture_covers_all_of_the_time(history: History) -> None:
    assert history.setting is not None
    lanes, legend = certificate.time_lanes(history, history.setting)
    assert [lane["group"] for lane in lanes] == [0, 1]
    for lane in lanes:
        at = 0
        for stretch in lane["stretches"]:
            assert stretch["x"] == at
            at += stretch["width"]
        assert at == certificate.COLUMNS
    assert {"productive", "start"} <= {each["cause"] for each in legend}
    killed = [s for s in lanes[1]["stretches"] if s["cause"] == "start"]
    second = certificate.COLUMNS / 22  # from 11.0 to 12.0 the second generation starts
    assert any(abs(s["x"] - 10 * second) <= 1 and abs(s["width"] - second) <= 2 for s in killed)


def test_the_loss_curve_is_in_its_box_and_no_longer_than_it_may_be(tmp_path: Path) -> None:
    files = story(tmp_path)
    many: list[dict[str, Any]] = [
        {"event": "step", "start": 5.0, "t": 5.0 + n / 1000, "step": n, "committed": True, "loss": 9 - n / 1000}
        for n in range(1, 5000)
    ]
    files.steps["n1", 0, 1] += many
    curve = certificate.loss_curve(files.history())
    points = [tuple(map(float, point.split(","))) for point in curve["points"].split()]
    assert 100 < len(points) <= 2 * curves.POINTS
    assert all(0 <= x <= certificate.COLUMNS and 10 <= y <= 150 for x, y in points)
    assert (curve["first"], curve["last"]) == (1, 4999)


def test_a_loss_that_is_no_number_is_not_drawn(history: History) -> None:
    for group in (0, 1):
        history.of_group(group)[0].committed()[3]["loss"] = math.nan
    drawn = certificate.loss_curve(history)
    assert "nan" not in drawn["points"]
    assert len(drawn["points"].split()) == 16


def test_a_report_is_json_whatever_numbers_are_in_it(history: History, tmp_path: Path) -> None:
    """JSON knows neither NaN nor Infinity, and a browser reads no file that has them."""
    fault(history, 1, within_s=math.inf)
    certificate.write(history, tmp_path, PARITY | {"curve": [[1, math.nan], [2, 6.0]]})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    body = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
    assert body["loss_parity"]["curve"] == [[1, None], [2, 6.0]]
    assert body["faults"][0]["within_s"] is None


def test_without_steps_there_is_a_page_all_the_same(history: History) -> None:
    history.steps = []
    assert "No loss was recorded." in " ".join(page(history).text)


def test_a_history_of_no_broken_run_has_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="what was to be broken"):
        certificate.build(story(tmp_path).history())


def test_each_cause_has_a_colour_of_its_own() -> None:
    assert certificate.COLOURS.keys() == set(Cause)
    assert len(set(certificate.COLOURS.values())) == len(Cause)
