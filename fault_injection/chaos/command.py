"""The command `supervisor chaos`: breaks a run on purpose and certifies the outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fault_injection.chaos.bounds import MOST_FAULTS
from supervisor.cli.common import HOME, Etcd, Home, Json, SecurityFile, opened_store, sentences, show
from supervisor.wire import command_line
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from fault_injection.chaos.schedule import Schedule
    from fault_injection.faults.fault import Site
    from supervisor.shell.history.files import History

FAULTS_DRAWN, STEPS_APART = 10, 30

chaos = command_line.commands(help_="Break a run on purpose and certify the outcome.")


def register(app: typer.Typer) -> None:
    """Add `chaos` to the command line."""
    app.add_typer(chaos, name="chaos")


@chaos.command("list", epilog="Example: supervisor chaos list")
def list_command(as_json: Json = False) -> None:
    """List every fault and what it does. Says why a fault cannot be made on this machine."""
    from fault_injection.chaos import printed
    from fault_injection.faults import site as sites

    site = sites.of_machine()
    if as_json:
        show(printed.rows(site), True, None)
    else:
        printed.faults(site)


Name = Annotated[str | None, typer.Option(help="Name of the run that it starts. Default: chaos.")]
Out = Annotated[Path | None, typer.Option(help="Folder for plan, history and report. Default: the run's folder.")]


@chaos.command("run", epilog="Example: supervisor chaos run fault_injection/schedules/short.toml --seed 7")
def run_command(
    schedule: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCHEDULE", help="Schedule in TOML (docs/CHAOS.md). Without one, the seed draws --faults faults."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed that chooses the victims. Default: the schedule's seed, or 0.")
    ] = None,
    faults: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_FAULTS, help="Without a schedule: number of faults that the seed draws. Default: 10."
        ),
    ] = None,
    every_steps: Annotated[
        int | None, typer.Option(min=1, help="Without a schedule: steps between two faults, roughly. Default: 30.")
    ] = None,
    run: Annotated[
        str,
        typer.Option("--run", "-r", help="A live run to break. Default: start one here, in its own system."),
    ] = "",
    name: Name = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and break nothing.")] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Use no warm processes: slower recoveries, less memory.")
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Break a run by a schedule or a seed and certify the outcome. Exits 1 unless all checkers pass.

    On Ctrl-C, SIGTERM or a closed terminal, it heals what it broke before it exits."""
    from fault_injection.chaos import own
    from fault_injection.chaos.campaign import Campaign
    from fault_injection.chaos.schedule import ScheduleError, drawn, load
    from fault_injection.testbed import netns
    from fault_injection.testbed.interrupts import interruptible
    from supervisor.shell.runfile import parse

    def wanted(site: Site) -> Schedule:
        if loaded is None:
            return drawn(seed or 0, faults or FAULTS_DRAWN, every_steps or STEPS_APART, site)
        return loaded if seed is None else replace(loaded, seed=seed)

    with sentences(), _wrong_input(), interruptible():
        loaded = load(schedule) if schedule is not None else None  # before anything is started
        if loaded is not None and (faults is not None or every_steps is not None):
            raise ScheduleError(
                [
                    f"--faults and --every-steps apply to faults that a seed draws, but {schedule} lists the faults: leave out one"
                ]
            )
        if run and (name is not None or cold):
            raise ScheduleError(
                [f"--name and --cold apply to a run that is started here, but --run breaks {run}: leave out one"]
            )
        name = "chaos" if name is None else name
        nodes = (loaded.nodes_per_group if loaded is not None else None) or 1
        ranks = (loaded.ranks_per_group if loaded is not None else None) or nodes
        started = own.spec(name, ranks, nodes=nodes)
        if wrong := parse.contradictions(started):
            raise ScheduleError(wrong)
        campaign = Campaign(wanted=wanted, say=_say, ranks=ranks, nodes=nodes, out=out, dry_run=dry_run)
        network = netns.entered()
        if not run and not dry_run and network is None and not netns.available():
            raise typer.Exit(_in_namespaces(home / name, started.groups.nodes + own.MORE_NODES))
        if run:
            with opened_store(etcd, home, security) as store:
                green = campaign.against(store, run, home)
        else:
            green = campaign.on_its_own(home, name, cold, network)
    raise typer.Exit(0 if green else 1)


@chaos.command("replay", epilog="Example: supervisor chaos replay runs/chaos/plan.toml")
def replay_command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan.toml that `chaos run` saved.")],
    run: Annotated[str, typer.Option("--run", "-r", help="A live run to break. Default: start one here.")] = "",
    name: Name = None,
    out: Out = None,
    cold: Annotated[bool, typer.Option("--cold", help="Use no warm processes.")] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Break a run again by a saved plan, victim by victim."""
    from fault_injection.chaos.schedule import ScheduleError, load
    from fault_injection.faults.catalogue import FAULTS

    with sentences(), _wrong_input():
        loaded = load(plan)
        named = [f for f in loaded.fault if not FAULTS[f.name].writers]
        left_open = [f.name for f in named if f.group is None or f.rank is None]
        if left_open or loaded.rate or loaded.each:
            raise ScheduleError(
                [
                    f"{plan} is not a plan: it names no victim for {left_open[0] if left_open else 'its rates'}; use `chaos run`"
                ]
            )
    run_command(
        schedule=plan, seed=None, faults=None, every_steps=None, run=run, name=name, out=out, dry_run=False, cold=cold, etcd=etcd,
        home=home, security=security,
    )  # fmt: skip


def _in_namespaces(folder: Path, nodes: int) -> int:
    """Runs this command again with network namespaces, in which each of the nodes is a machine of its own."""
    from fault_injection.chaos.campaign import refuse_if_there
    from fault_injection.testbed import netns

    refuse_if_there(folder)
    arguments = sys.argv[2:] if sys.argv[1:2] == ["chaos"] else sys.argv[1:]
    with netns.network(nodes) as network:
        again = [sys.executable, "-m", "fault_injection.chaos", *arguments]
        return netns.run_inside(network, again, netns.environment(network), mounts=True)


def _say(sentence: str) -> None:
    """Prints a sentence. Its terminal may be closed: what was broken must be healed and judged all the same."""
    with suppress(OSError):
        print_line(sentence)


@contextmanager
def _wrong_input() -> Iterator[None]:
    """Prints wrong input line by line and exits with code 2."""
    from fault_injection.chaos.schedule import ScheduleError

    try:
        yield
    except ScheduleError as error:
        for line in str(error).splitlines():
            print_line(f"supervisor: {line}", err=True)
        raise typer.Exit(2) from None


@chaos.command("check", epilog="Example: supervisor chaos check runs/chaos/history.jsonl")
def check_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="history.jsonl of a chaos run.")],
    as_json: Json = False,
) -> None:
    """Judge histories from their files, checker by checker. Exits 1 unless all pass; 2 if a file is not a history, after judging
    the others."""
    from fault_injection.chaos import printed
    from fault_injection.checkers import history_file
    from fault_injection.checkers.consistency import check
    from fault_injection.checkers.recovery import ALL

    judged, unread = {}, False
    with sentences():
        for file in files:
            try:
                judged[str(file)] = check(_history(file), ALL)
            except history_file.NoHistory as error:
                print_line(f"supervisor: {error}", err=True)
                unread = True
    if as_json:
        show(judged, True, None)
    else:
        for path, verdicts in judged.items():
            print_line(f"{path}: {sum(v.answer == 'pass' for v in verdicts)} of {len(verdicts)} checkers pass")
            for line in printed.verdicts(verdicts):
                print_line(f"  {line}")
    if unread:
        raise typer.Exit(2)
    if any(v.answer != "pass" for verdicts in judged.values() for v in verdicts):
        raise typer.Exit(1)


def _history(path: Path) -> History:
    """Raises NoHistory if no history can be read from the path."""
    from fault_injection.checkers import history_file

    if path.is_dir():
        raise history_file.NoHistory(f"{path} is a folder: give the file, {path / 'history.jsonl'}")
    try:
        return history_file.load(path)
    except OSError as error:
        raise history_file.NoHistory(
            f"cannot read {path}: {error.strerror}; `supervisor chaos run` writes history.jsonl into the run's folder, or --out"
        ) from error


__all__ = ["chaos", "register"]
