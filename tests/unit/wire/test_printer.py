"""Text from outside is shown as it was written, by every renderer."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from agents.health.checks import hand
from fault_injection.demo import play as demo
from supervisor.cli import ledger
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.shell.inspect import doctor, render
from supervisor.shell.inspect.doctor.finding import bad
from supervisor.shell.inspect.status import LighthouseStatus, NodeStatus, RunStatus
from supervisor.wire.checks import CheckResult
from supervisor.wire.printer import Printer, print_line

HARMLESS = "[rank0] a[/data/shard-3.parquet] :smile: [red]x[/red] é"
HOSTILE = f"{HARMLESS}\x1b[2J\x9b1m\x1b]0;title\x1b\\"
SHOWN = f"{HARMLESS}␛[2J�1m␛]0;title␛\\"

RUN = RunStatus(
    run="run", phase="halted", paused=False, halt_reason=HOSTILE, leader=HOSTILE, epoch=1, step=1, groups=(),
    lighthouse=LighthouseStatus(state="serving", node="n1", generation=1, address=""), checkpoint_step=None, spares=(HOSTILE,),
    cordons={"n1": HOSTILE}, budgets_left={}, incidents_open=(), problems=(HOSTILE,), warnings=(HOSTILE,), waiting=(HOSTILE,),
    leaving={"n1": HOSTILE}, page=HOSTILE,
)  # fmt: skip
NODE = NodeStatus(
    node="n1", alive=True, role="trainer", address=HOSTILE, allocation=HOSTILE, host="n1", leaving=HOSTILE, runs=(HOSTILE,),
    warm="off", disk_free_bytes=None, memory_available_bytes=None, problems=(HOSTILE,), facts=(HOSTILE,), cordon=f"2 {HOSTILE}",
)  # fmt: skip
INCIDENT = Incident(
    id="i1", kind=Kind.ERROR, group=0, node=HOSTILE, rung=Rung.RESTART, generation_before=1, generation_after=2, reason=Reason.of(Code.TEXT, text=HOSTILE), evidence=(),
)  # fmt: skip
CHECK = CheckResult(name=HOSTILE, outcome="failed", evidence=HOSTILE)


def _titled() -> Table:
    table = Table("x" * 200, title=HOSTILE)
    table.add_row("")
    return table


def printed(what: Any) -> str:
    out = io.StringIO()
    Printer(file=out, width=1000, soft_wrap=True).print(what)
    return out.getvalue()


@pytest.mark.parametrize(
    ("what", "times"),
    [
        pytest.param(HOSTILE, 1, id="a sentence"),
        pytest.param(Text(HOSTILE), 1, id="a text"),
        pytest.param(render.run(RUN, 0.0), 9, id="status"),
        pytest.param(render.nodes([NODE]), 7, id="nodes"),
        pytest.param(render.incidents([INCIDENT, replace(INCIDENT, shadow=True)]), 3, id="incidents"),
        pytest.param(render.shadows([replace(INCIDENT, shadow=True)]), 2, id="shadow incidents"),
        pytest.param(doctor.render([bad(HOSTILE, HOSTILE)]), 2, id="doctor"),
        pytest.param(hand.render([CHECK], HOSTILE), 3, id="check"),
        pytest.param(ledger._table((HOSTILE,), [(HOSTILE,)]), 2, id="ledger"),
        pytest.param(_titled(), 1, id="a table's title"),
        pytest.param(demo._table({"incidents": [{"id": None, "fault": HOSTILE}]}), 1, id="demo"),
    ],
)
def test_it_is_shown(what: Any, times: int) -> None:
    out = printed(what)
    assert out.count(SHOWN) == times
    assert "\x1b" not in out


def test_a_line_is_shown_on_either_stream(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(HOSTILE)
    print_line(ValueError(HOSTILE), err=True)
    assert capsys.readouterr() == (f"{SHOWN}\n", f"{SHOWN}\n")


def test_a_long_word_takes_no_quadratic_time() -> None:
    """rich's highlighter took some two hours for it."""
    assert printed("x" * 1_000_000).count("x") == 1_000_000
