"""Every command that a document prints is one of ours, with options that it has: a wrong one at three in the morning is
worse than none."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

import agents.cli
import fault_injection.commands
import supervisor.cli
import titan_actor.tokens.commands
from dashboards import rules
from supervisor.wire.command_line import Later

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
FOLDERS = ("docs", "examples", "fault_injection")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
WHOLE = sorted({ROOT / "README.md", *RUNBOOKS.glob("*.md")})
"""Documents whose commands in the midst of a sentence must be right to type too."""

OF_A_RUN = {rule.runbook for rule in rules.alerts() if re.search(r"(by|on) \([^)]*\brun\b", rule.expression)}
"""Pages of alerts that name a run."""

STANDS_FOR = {"GROUP": "1", "PORT": "9400", "$SUPERVISOR_ETCD": "h:1", "ENDPOINTS": "h:1", "NEW": "h:1"}
"""Values for words that a reader replaces, where any word will not do."""

PREFIX = re.compile(r"^(\$ |[A-Z_]+=\S+ |exec |env |--block-signal=USR1 |\.venv/bin/)*")
COMMAND = re.compile(r"supervisor(-agent)?( |$)")


Command = TyperCommand | TyperGroup


def programs() -> dict[str, Command]:
    fault_injection.commands.register(supervisor.cli.app)
    titan_actor.tokens.commands.register(supervisor.cli.app)
    found = {"supervisor": supervisor.cli.app, "supervisor-agent": agents.cli.app}
    return {name: cast(Command, typer.main.get_command(app)) for name, app in found.items()}


PROGRAMS = programs()


def typed(text: str) -> Iterator[str]:
    """The commands in the blocks of code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (supervisor .*)$", text, re.MULTILINE)
    for line in "\n".join([*blocks, *indented]).replace("\\\n", " ").splitlines():
        for part in re.split(r" # |; |&& ", line):
            command = PREFIX.sub("", part.strip())
            if COMMAND.match(command):
                yield command


def named(text: str) -> Iterator[str]:
    """The commands in the midst of a sentence."""
    sentences = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", sentences):
        command = PREFIX.sub("", " ".join(code.split()))
        if COMMAND.match(command):
            yield command


def of(command: str) -> tuple[Command, list[str]]:
    """The command, and its arguments. Raises KeyError when there is no such command."""
    program, *words = [STANDS_FOR.get(word, word) for word in shlex.split(command)]
    found = PROGRAMS[program]
    while isinstance(found, TyperGroup) and words:
        listed, words = found.commands[words[0]], words[1:]
        found = listed.chosen() if isinstance(listed, Later) else cast(Command, listed)
    return found, words


def problem(command: str, a_name_will_do: bool = False) -> str:
    """The error in a command; empty: none."""
    if re.search(r'(?<!")\.\.\.(?!")', command):
        return "a reader cannot tell what `...` stands for"
    try:
        found, words = of(command)
    except KeyError as error:
        return f"there is no command {error}"
    if a_name_will_do and not words:
        return ""
    try:
        found.make_context(command, words)
    except Exception as error:  # click's or typer's own, by their versions
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        return str(said())
    return ""


def no_run(command: str) -> bool:
    """True if it takes the newest run, where another one may be meant."""
    found, words = of(command)
    takes = {name for parameter in found.params for name in parameter.opts}
    return "--run" in takes and not {"--run", "-r", "RUN"} & set(words)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that the runbooks set at their beginning."""
    for name in [name for name in os.environ if name.startswith("SUPERVISOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SUPERVISOR_ETCD", "h:1")


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_commands_of_a_document_exist(page: Path) -> None:
    found = {command: problem(command) for command in typed(page.read_text())}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("page", WHOLE, ids=lambda p: str(p.relative_to(ROOT)))
def test_so_do_those_in_its_sentences(page: Path) -> None:
    found = {command: problem(command, a_name_will_do=True) for command in named(page.read_text())}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_its_links_lead_to_files_that_are_there(page: Path) -> None:
    sentences = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", sentences) if not link.startswith("https:")]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda p: p.name)
def test_a_runbook_says_of_which_run(page: Path) -> None:
    """The newest run need not be the one that called."""
    text = page.read_text()
    if page.name == "README.md" or str(page.relative_to(ROOT)) in OF_A_RUN:
        assert [command for command in (*typed(text), *named(text)) if no_run(command)] == []


def test_most_alerts_name_their_run() -> None:
    assert len(OF_A_RUN) >= len(rules.alerts()) / 3


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```\n$ supervisor stauts\n```", "there is no command 'stauts'"),
        ("```\nA=b supervisor status --runn demo   # how it does\n```", "No such option: --runn"),
        ("so `supervisor cordon\nNODE`", "Missing option '--because'"),
        ("`supervisor restart g7 --run demo`", "Invalid value for 'GROUP'"),
        ("`supervisor-agent run --role service --node NAME`", "Missing option '--home'"),
        ("```\nsupervisor run --etcd ...\n```", "a reader cannot tell"),
        ("```\nsupervisor restore\n```", "Missing argument 'FILE'"),
        ("each `supervisor run`, or `supervisor policy set hang.factor=20 --because \"...\" --run RUN`", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(text: str, wrong: str) -> None:
    found = [problem(command) for command in typed(text)]
    found += [problem(command, a_name_will_do=True) for command in named(text)]
    assert found
    assert wrong in "".join(found)
    assert bool(wrong) == any(found)


@pytest.mark.parametrize(
    ("command", "newest"),
    [("status", True), ("restart 1", True), ("status --run RUN", False), ("resume RUN", False), ("nodes", False)],
)
def test_which_run_is_meant_is_seen(command: str, newest: bool) -> None:
    assert no_run(f"supervisor {command}") == newest
