"""The page in a terminal: it fits, and has the page's statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from supervisor.core.model.observed import ControlView
from supervisor.shell.web.terminal import ENDLESS, PLAIN, SIGNS, Drawing, Word, lasted
from tests.unit.shell.web.test_snapshot import CLOCK_AT, look, unsaved, world


def drawn(told: Mapping[str, Any], width: int = 80, height: int = 24, signs: Mapping[str, str] = SIGNS) -> list[str]:
    lines = Drawing(told, width, signs).lines(Word("live 08:31:29"), height)
    assert len(lines) <= height
    assert max(cell_len(line.plain) for line in lines) <= width
    return [line.plain.rstrip() for line in lines]


def hurt() -> dict[str, Any]:
    """The page of a run in which a node was lost and its group moved, and a rank has just crashed."""
    w = world()
    w.hear(2, "silent")
    w.lapse(w.group(2).first_node)
    w.round(0.1)
    w.train(9)
    w.recover(2, step=9)
    w.train(12)
    w.crash(1)
    w.round(0.2)
    return look(w)


def test_the_two_questions_are_answered_first_in_the_words_of_the_page() -> None:
    told = hurt()
    first, headline, up, *_ = drawn(told)
    assert first.startswith("run run ")
    assert first.endswith(" live 08:31:29")
    assert headline == told["headline"]["text"] == "Training on 2 of 3 groups: group 1 starting."
    assert up == told["get_up"]["word"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (132, 50), (40, 12), (ENDLESS, ENDLESS), (20, 3)])
@pytest.mark.parametrize("groups", [3, 300])
def test_it_fits(width: int, height: int, groups: int) -> None:
    told = hurt()
    one = told["groups"]["0"]
    told["groups"] |= {str(g): one for g in range(3, groups)}
    text = drawn(told, width, height)
    assert text[1].startswith("Training on 2 of 3"[: width // 2])
    if height >= 24:
        joined = "\n".join(text)
        for words in ("groups ", "incidents  2 so far, 1 open", "nodes  ", "budgets left  ", "step 12", "loss "):
            assert words in joined, joined
        assert any(row.startswith("   1  ↑↑  starting") for row in text), "whoever is not well has a row"


def test_an_incident_says_when_what_was_done_and_why() -> None:
    text = drawn(hurt(), ENDLESS, ENDLESS)
    at = next(n for n, row in enumerate(text) if row.startswith("  i2 open  crash of group 1, rank 0, on n2; seen "))
    assert text[at + 1] == "     Decided: rung 1 (restart); it is under way."
    assert text[at + 2].startswith("     a process ended")
    assert text[at + 3].startswith("  i1 recovered  node lost of group 2, on n3; lost about ")
    assert text[at + 3].endswith("s")
    assert "over after " in text[at + 3]


def test_before_a_halted_run_is_resumed_one_sees_what_there_is_to_resume_from() -> None:
    w = world()
    for group in range(3):
        w.fail(group, error="ValueError: a bad batch")
    for _ in range(5):
        w.round(1.0)
    assert w.memory.phase == "halted"
    text = "\n".join(drawn(look(w), ENDLESS, ENDLESS))
    assert "no checkpoint yet" in text
    assert "lighthouse none" in text


def test_steps_that_no_checkpoint_holds_are_told_at_the_top_however_small_the_terminal() -> None:
    _, headline, up, why, *_ = drawn(unsaved(world()))
    assert headline == "Training: all 3 groups step, but there is no checkpoint since step 50."
    assert up == "No one needs to act now; look at this in working hours:"
    assert why.startswith("- no checkpoint since step 50, and one is due every 50 steps: ")


def test_what_is_not_shown_is_counted() -> None:
    told = hurt()
    told["incidents"] |= {f"i{n}": told["incidents"]["i1"] for n in range(3, 40)}
    text = drawn(told)
    shown = sum(row.startswith("  i") for row in text)
    assert shown >= 1, "the open one, however little room there is"
    assert next(row for row in text if row.startswith("  i")).startswith("  i2 open  crash of group 1")
    assert f"  and {39 - shown} more: supervisor incidents" in text
    for g in range(3, 90):
        told["groups"][str(g)] = told["groups"]["1"]
    head = next(row for row in drawn(told) if row.startswith("groups "))
    rows = sum(row.lstrip()[:1].isdigit() and "starting" in row for row in drawn(told))
    assert f"({88 - rows} more with problems)" in head


def test_a_pause_and_an_etcd_that_is_away() -> None:
    w = world()
    w.control = ControlView(paused=True)
    w.round(0.1)
    now = CLOCK_AT + w.now
    text = "\n".join(drawn(look(w, now=now, store_since=now - 12)))
    assert "! paused: nothing is done" in text
    assert "! etcd has not answered since " in text
    assert "(12 s): this is the state" in text
    told = look(w, now=now, store_since=now - 200)
    assert told["get_up"]["level"] == "now"
    assert "etcd has not answered for more than 3 min" in told["get_up"]["why"][0]


def test_without_other_characters() -> None:
    told = hurt()
    assert all(row.isascii() for row in drawn(told, signs=PLAIN))
    assert any(row.startswith("   1  ^^  starting") for row in drawn(told, signs=PLAIN))


def test_what_a_trainer_wrote_draws_nothing_of_its_own() -> None:
    told = hurt()
    evil = "bad\x1b[2J\nworse\r\x07"
    told["incidents"]["i2"] |= {"why": evil, "did": evil}
    told["groups"]["1"] |= {"why": evil}
    told["get_up"] |= {"why": [evil]}
    told["nodes"]["n1"] |= {"wrong": [evil]}
    text = drawn(told, 200, 60)
    assert all(row.isprintable() for row in text)
    assert "- bad␛[2J worse␍␇" in text


def test_what_is_wrong_with_many_nodes_is_told_once() -> None:
    told = hurt()
    for name, node in told["nodes"].items():
        told["nodes"][name] = node | {"wrong": [*node["wrong"], "its clock is wrong"]}
    text = drawn(told, 132, 60)
    assert sum("its clock is wrong" in row for row in text) == 1
    assert "- n3, host, n1, n2 and 1 more: its clock is wrong" in text


def test_many_ranks_are_counted() -> None:
    told = hurt()
    told["groups"]["0"] = told["groups"]["0"] | {"ranks": "h" * 62 + "dd"}
    assert any(row.startswith("   0  62✓ 2✕  healthy") for row in drawn(told))


def test_no_run_and_one_that_cannot_be_read() -> None:
    assert drawn({"run": ""})[1] == "There is no run: start one with `supervisor launch RUN.toml`."
    w = world()
    w.store.put("/supervisor/v1/runs/run/memory/run", b"{")
    told = look_as_it_is(w)
    assert "A person must act now:" in drawn(told)


def look_as_it_is(w: Any) -> dict[str, Any]:
    w.tell = lambda: None
    return look(w)


def test_of_a_run_that_has_ended_nothing_is_said_to_be_missing() -> None:
    """Its trainers are gone, and with them loss and quorum; its lighthouse is closed."""
    w = world()
    w.memory = replace(w.memory, phase="finished")
    w.nodes = {name: replace(node, ranks=()) for name, node in w.nodes.items()}
    w.lead_again()
    told = look(w)
    assert told["numbers"]["lighthouse"] == "none"
    text = "\n".join(drawn(told))
    assert "Finished" in text
    for words in ("not known", "yet", "lighthouse none"):
        assert words not in text, text


def test_a_loss_that_is_no_number() -> None:
    told = hurt()
    told["numbers"] = told["numbers"] | {"loss": "nan"}
    assert any("loss nan" in row for row in drawn(told))
    del told["numbers"]["loss"]
    assert any("loss not known" in row for row in drawn(told))


def test_how_long() -> None:
    told = {
        3.04: "3.0 s",
        45.2: "45 s",
        119.7: "2 min",
        137: "2 min 17 s",
        600: "10 min",
        3599: "59 min 59 s",
        7300: "2 h 1 min",
    }
    assert {s: lasted(s) for s in told} == told


def test_where_the_time_went() -> None:
    told = hurt()
    assert not any("ETTR" in row for row in drawn(told))
    told["time"] = {
        "ettr": 0.9312,
        "group_s": 7300.0,
        "lost": [["start", 0.05], ["lost_step", 0.0184], ["heal", 0.0004]],
    }
    assert "ETTR 93.1% of 2 h 1 min of group time; badput: start 5.0%, lost step 1.8%" in drawn(told)


def test_a_group_without_a_node() -> None:
    told = hurt()
    told["groups"]["1"] = told["groups"]["1"] | {"ranks": "ww", "worst": "w", "node": ""}
    assert any(row.startswith("   1  ……  waiting   no node") for row in drawn(told))
