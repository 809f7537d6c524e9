"""What the commands share: their options, errors as sentences, the store and the printing.

To fail for want of an etcd takes no more than is imported here; what a command needs then, it imports itself.
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
from supervisor.shell.home import endpoints_of, runs_in, security_of
from supervisor.wire import keys
from supervisor.wire.logged import LogFormatError
from supervisor.wire.printer import Printer, print_line
from supervisor.wire.security import VARIABLE, SecurityError, checked, host_and_port

if TYPE_CHECKING:
    from supervisor.core.bounds import Row
    from supervisor.shell.mirror import Mirror
    from supervisor.shell.store import EtcdStore
    from supervisor.wire.records import RunRecord
    from supervisor.wire.security import Security

console = Printer(soft_wrap=True)


def endpoints_option(context: typer.Context, given: str) -> str:
    """Refuses what is no list of endpoints; also an empty one that was written out, as by a script without its variable."""
    source = context.get_parameter_source("etcd")
    if given or (source is not None and source.name == "COMMANDLINE"):
        for endpoint in given.split(","):
            try:
                host_and_port(endpoint)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
    return given


def text_option(given: Any) -> Any:
    """Refuses words, one text or several, that are no UTF-8: Python has half of a surrogate pair for each such byte, which no record, page
    or terminal can show again. Not for paths: the name of a file may be so."""
    try:
        "".join(given).encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is no UTF-8: the terminal may be set to another encoding") from None
    return given


Etcd = Annotated[
    str,
    typer.Option(
        envvar="SUPERVISOR_ETCD",
        callback=endpoints_option,
        help="HOST:PORT of etcd, several with commas. Default: that of the `supervisor up` in --home.",
    ),
]
Home = Annotated[Path, typer.Option(envvar="SUPERVISOR_HOME", help="Folder of the runs.")]
Run = Annotated[
    str,
    typer.Option(
        "--run", "-r", help="Name of the run. Default: the newest; to change one, the only one that is not over."
    ),
]
SecurityFile = Annotated[
    str,
    typer.Option("--security", envvar=VARIABLE, help="The security file (docs/SECURITY.md). Default: that of `up`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HOME = Path("runs")
DEFAULT = "127.0.0.1:2379"
"""Where etcd is if nobody says where."""


def print_timeouts(run: str, rows: Sequence[Row]) -> None:
    """The whole table to stderr, as the doctor prints it, where one of them is refused; nothing where there is none."""
    if rows:
        from supervisor.shell.doctor.timeouts import table

        Printer(stderr=True, soft_wrap=True).print(table(run, rows))


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """A user's mistake or a missing part is a sentence and exit code 1 (2: what was given), never a traceback."""
    try:
        yield
    except (SecurityError, failpoints.FailpointError, LogFormatError) as error:
        print_line(f"supervisor: {error}", err=True)
        raise typer.Exit(2) from None
    except PortError as error:
        print_line(f"supervisor: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        from supervisor.shell.views import Unreadable
        from supervisor.wire.records import RecordError

        if not isinstance(error, RecordError | Unreadable):
            raise
        print_line(f"supervisor: {error}", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print_line(f"supervisor: {error.strerror or error}{where}", err=True)
        raise typer.Exit(1) from None


def endpoints_in(etcd: str, home: Path) -> list[str]:
    """Those given, or those of the `up` in a home, or etcd's own default."""
    return (etcd or endpoints_of(home) or DEFAULT).split(",")


def connect(endpoints: Sequence[str], security: Security) -> EtcdStore:
    """A store on the etcd there. Errors as of `supervisor.shell.store.connect`."""
    from supervisor.shell import store

    return store.connect(endpoints, security=security)


@contextlib.contextmanager
def opened_store(etcd: str, home: Path, security: str = "") -> Iterator[EtcdStore]:
    with sentences():
        endpoints = endpoints_in(etcd, home)
        try:
            store = connect(endpoints, checked(security or security_of(home), endpoints))
        except Retryable as error:
            if etcd:
                raise
            if endpoints_of(home):
                raise Fatal(_away(home, endpoints)) from error
            raise Fatal(_nobody_said(home)) from error
        try:
            yield store
        finally:
            store.close()


def _away(home: Path, endpoints: Sequence[str]) -> str:
    where = ", ".join(endpoints)
    if runs_in(home):
        return (
            f"the etcd of the `supervisor up` in {home} does not answer at {where}. `up` starts it again as soon as it can, and "
            f"says what keeps it from that; training goes on meanwhile"
        )
    return f"the etcd of {home} does not answer at {where}, and no `supervisor up` runs there: `supervisor up` starts it again"


def _nobody_said(home: Path) -> str:
    return (
        # one without nodes of its own tells nobody: its etcd is another's
        f"no `supervisor up` in {home} tells where its etcd is, and none answers at {DEFAULT}, where one is by default: "
        "give --home of one that runs, or --etcd, or set SUPERVISOR_ETCD; only for a first run: `supervisor up` starts one. "
        f"What a run did whose etcd has gone is in its files: supervisor ledger {home / 'NAME'}, supervisor explain ID --journal {home / 'NAME' / 'journal.jsonl'}"
    )


@contextlib.contextmanager
def opened_mirror(etcd: str, home: Path, security: str = "") -> Iterator[Mirror]:
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.mirror import Mirror

        yield Mirror(store.list(keys.PREFIX))


def run_to_change(mirror: Mirror, run: str, command: str, resumable: bool = False) -> RunRecord:
    """The named run, or the only one that is not over. Of several a person is asked, and a script is refused with exit code 2: who stops
    the wrong run loses hours. `resumable` as in client.not_over."""
    from supervisor.shell import client

    found = client.not_over(mirror, resumable)
    if run or len(found) < 2:
        return client.choose_run(mirror, run or next(iter(found), ""))
    print_line(f"supervisor: {len(found)} runs are not over; which one? supervisor {command} --run NAME", err=True)
    for name, phase in found.items():
        print_line(f"  {name} ({phase})", err=True)
    if not _asks():
        raise typer.Exit(2)
    while (name := typer.prompt("NAME", err=True)) not in found:
        print_line(f"supervisor: {name!r} is none of these", err=True)
    return client.choose_run(mirror, name)


def _asks() -> bool:
    """Whether a person is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def show(value: Any, as_json: bool, table: Any) -> None:
    if as_json:
        from supervisor.shell import status

        print_line(json.dumps(status.as_json(value), indent=2))
    else:
        console.print(table)
