"""Parts that the commands share: options, errors printed as sentences, the store, and printing.

A command that finds no etcd imports little more than this module's header. Functions import what else they need.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.ports.errors import Fatal, PortError, Retryable
from supervisor.shell import failpoints
from supervisor.shell.dev.home import HOME as HOME
from supervisor.shell.dev.home import endpoints_in, security_of, why_away
from supervisor.wire import keys
from supervisor.wire.logged import LogFormatError
from supervisor.wire.printer import Printer, print_line
from supervisor.wire.security import VARIABLE, SecurityError, checked, host_and_port, load

if TYPE_CHECKING:
    from supervisor.core.timeouts.bound import Row
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.etcd import EtcdStore
    from supervisor.wire.records import RunRecord
    from supervisor.wire.security import Security

console = Printer(soft_wrap=True)


def endpoints_option(context: typer.Context, given: str) -> str:
    """Refuses a malformed list of endpoints, or an empty one that was written out: a script lacks its variable."""
    source = context.get_parameter_source("etcd")
    if given or (source is not None and source.name == "COMMANDLINE"):
        for endpoint in given.split(","):
            try:
                host_and_port(endpoint)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
    return given


def text_option(given: Any) -> Any:
    """Refuses one or several texts with invalid UTF-8. Python holds half of a surrogate pair for each such byte, which
    no record, page or terminal can show. Paths are exempt: a file may have such a name."""
    try:
        "".join(given or ()).encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not valid UTF-8: set the terminal to UTF-8") from None
    return given


UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float | None:
    """Returns the seconds of a time such as 90s, 10m, 2h or 1d; None for an empty text. Raises ValueError."""
    if not text:
        return None
    if text[-1:] not in UNITS_S or not text[:-1].isdecimal():
        raise ValueError(f"{text!r} is no time: give a number and its unit, as in 90s, 10m, 2h or 1d")
    return float(text[:-1]) * UNITS_S[text[-1]]


def duration_option(given: str) -> str:
    """Refuses a text that is no time."""
    try:
        seconds_of(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return given


Etcd = Annotated[
    str,
    typer.Option(
        envvar="SUPERVISOR_ETCD",
        callback=endpoints_option,
        help="HOST:PORT of etcd; separate several by commas. Default: the etcd of the `supervisor up` in --home.",
    ),
]
Home = Annotated[Path, typer.Option(envvar="SUPERVISOR_HOME", help="Folder of the runs.")]
Run = Annotated[
    str,
    typer.Option(
        "--run", "-r", help="Name of the run. Default: the newest run; to change a run, the only one that is not over."
    ),
]
Name = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, as with --run.")]
SecurityFile = Annotated[
    str,
    typer.Option("--security", envvar=VARIABLE, help="Security file (docs/SECURITY.md). Default: the one of `up`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_timeouts(run: str, rows: Sequence[Row]) -> None:
    """Prints all timeouts to stderr as the doctor does, after one of them was refused; prints nothing without rows."""
    if rows:
        from supervisor.shell.inspect.doctor.timeouts import table

        Printer(stderr=True, soft_wrap=True).print(table(run, rows))


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Prints a user's mistake (exit code 2) or a missing part (1) as a sentence, never as a traceback."""
    try:
        yield
    except (SecurityError, failpoints.FailpointError, LogFormatError) as error:
        print_line(f"supervisor: {error}", err=True)
        raise typer.Exit(2) from None
    except PortError as error:
        print_line(f"supervisor: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        from supervisor.shell.control.observe import Unreadable
        from supervisor.wire.records import RecordError

        if not isinstance(error, RecordError | Unreadable):
            raise
        print_line(f"supervisor: {error}", err=True)
        raise typer.Exit(1) from None
    except BrokenPipeError:  # what reads the output has ended, as in `| head`: typer ends the command without a word
        raise
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print_line(f"supervisor: {error.strerror or error}{where}", err=True)
        raise typer.Exit(1) from None


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Shows on stderr what is waited for: a spinner in a terminal while it lasts, a line elsewhere."""
    printer = Printer(stderr=True)
    if not printer.is_terminal or printer.is_dumb_terminal:
        print_line(f"supervisor: {what} ...", err=True)
        yield
        return
    from rich.text import Text

    with printer.status(Text(f"{what} ...")):
        yield


def connect(endpoints: Sequence[str], security: Security) -> EtcdStore:
    """Returns a store on the etcd there. Raises what `supervisor.shell.etcd.connect` raises."""
    from supervisor.shell import etcd as store

    return store.connect(endpoints, security=security)


def credentials(home: Path, security: str) -> Security:
    """Returns what the security file of a command has, or that of the `up` in this home. Raises SecurityError."""
    return load(security or security_of(home))


@contextlib.contextmanager
def opened_store(etcd: str, home: Path, security: str = "") -> Iterator[EtcdStore]:
    with sentences():
        endpoints = endpoints_in(etcd, home)
        try:
            store = connect(endpoints, checked(security or security_of(home), endpoints))
        except Retryable as error:
            if etcd:
                raise
            raise Fatal(why_away(home, endpoints)) from error
        with contextlib.closing(store):
            yield store


@contextlib.contextmanager
def opened_mirror(etcd: str, home: Path, security: str = "") -> Iterator[Mirror]:
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror

        yield Mirror(store.list(keys.PREFIX))


def one_name(name: str, run: str) -> str:
    """Returns the name that was given as an argument or by --run; exits 2 if both were, and differ."""
    if name and run and name != run:
        raise typer.BadParameter(f"the run is named {name!r} and {run!r}: name it once", param_hint="--run")
    return name or run


def run_to_change(mirror: Mirror, run: str, command: str, resumable: bool = False) -> RunRecord:
    """Returns the named run, or the only one that is not over. Among several it asks a person, and exits 2 in a script,
    because stopping the wrong run loses hours. `resumable` as in client.not_over."""
    from supervisor.shell.inspect import client

    found = client.not_over(mirror, resumable)
    if run or len(found) < 2:
        return client.choose_run(mirror, run or next(iter(found), ""))
    print_line(f"supervisor: {len(found)} runs are not over; which one? supervisor {command} --run NAME", err=True)
    for name, phase in found.items():
        print_line(f"  {name} ({phase})", err=True)
    if not person_asked():
        raise typer.Exit(2)
    while (name := typer.prompt("NAME", err=True)) not in found:
        print_line(f"supervisor: {name!r} is none of these", err=True)
    return client.choose_run(mirror, name)


def person_asked() -> bool:
    """Returns true if a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def show(value: Any, as_json: bool, table: Any) -> None:
    if as_json:
        from supervisor.shell.inspect import status

        print_line(json.dumps(status.as_json(value), indent=2))
    else:
        console.print(table)
