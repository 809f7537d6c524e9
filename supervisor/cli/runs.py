"""Commands that start a run and control it. Each imports what it needs: few of them read a run file or use Slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Run,
    SecurityFile,
    endpoints_in,
    endpoints_option,
    opened_store,
    print_timeouts,
    run_to_change,
    sentences,
    text_option,
)
from supervisor.core.model.measured import NOTHING, Measured
from supervisor.ports.errors import Fatal
from supervisor.shell.dev.home import security_of, system_folder
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.etcd import EtcdStore
    from supervisor.wire.records import Control, RunRecord

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


@commands.command(epilog="Example: supervisor launch examples/debug.toml")
def launch(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file (docs/RUN_FILE.md).")],
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the run file.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Start no group until each has a node (allocation.wait_for_all).")
    ] = False,
) -> None:
    """Check a run file and start its run."""
    from supervisor.shell.engines.registry import Context, before_launch
    from supervisor.shell.inspect import client

    spec, checked = _checked_spec(file)
    if wait:
        spec = replace(spec, allocation=replace(spec.allocation, wait_for_all=True))
    with sentences():
        endpoints = tuple(endpoints_in(etcd, home))
        context = Context(home=system_folder(home), etcd=endpoints, security=security or security_of(home))
        note = before_launch(spec, context)
    if note:
        print_line(f"supervisor: {note}", err=True)
    if check:
        _note_what_is_short(spec)
        print_line(f"{file}: run {spec.name!r} is valid{'' if checked else ', as far as it was checked'}")
        return
    with opened_store(etcd, home, security) as store:
        _refuse_unsafe(file, store, spec)
        record = client.launch(store, spec, home)
    print_line(f"launched {spec.name}; folder {record.run_dir}. Look: supervisor status --run {spec.name}")


@commands.command(
    epilog="Example: supervisor submit run.toml --etcd etcd-0:2379,etcd-1:2379,etcd-2:2379 --home /shared/runs"
)
def submit(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file (docs/RUN_FILE.md).")],
    etcd: Annotated[
        str,
        typer.Option(
            envvar="SUPERVISOR_ETCD", callback=endpoints_option, help="HOST:PORT of etcd, as the nodes reach it."
        ),
    ],
    home: Annotated[
        Path, typer.Option(envvar="SUPERVISOR_HOME", help="Folder of the runs, on a disk that all hosts share.")
    ] = HOME,
    supervisors: Annotated[int, typer.Option(min=1, help="Number of control-plane jobs, each on its own host.")] = 2,
    partition: Annotated[
        str, typer.Option(help="Partition of these jobs, such as one without GPUs. Default: the run file's.")
    ] = "",
    wait_s: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for Slurm to start the jobs; after that they stay in the queue."),
    ] = 600.0,
    security: SecurityFile = "",
) -> None:
    """Start the control plane as Slurm jobs, and a run on it. A repeated `submit` keeps the jobs and the run that exist (docs/SLURM.md)."""
    from supervisor.shell.control.system_id import system_id
    from supervisor.shell.engines.registry import Context, before_launch
    from supervisor.shell.engines.slurm import control_plane as submitting
    from supervisor.shell.engines.slurm.commands import Commands
    from supervisor.shell.engines.slurm.engine import SlurmEngine
    from supervisor.shell.inspect import client

    spec, _ = _checked_spec(file)
    if spec.allocation.engine != SlurmEngine.name:
        print_line(
            f'supervisor: {file}: allocation.engine = "{spec.allocation.engine}": submit needs "slurm"; for other engines use `supervisor launch`',
            err=True,
        )
        raise typer.Exit(2)

    def say(sentence: str) -> None:
        print_line(sentence, err=True)

    with opened_store(etcd, home, security) as store:
        before = client.launched_before(store, spec)
        if before is None:
            _refuse_unsafe(file, store, spec)
        context = Context(home=system_folder(home), etcd=tuple(etcd.split(",")), security=security)
        note = before_launch(spec, context)
        if note:
            raise Fatal(note)
        file_given = str(Path(security).resolve()) if security else ""
        plane = submitting.plane_of(
            spec.allocation.slurm,
            system=system_id(store),
            etcd=etcd,
            home=home,
            security=file_given,
            partition=partition,
        )
        slurm = Commands()
        submitting.check(slurm, plane)
        submitting.ensure(slurm, plane, supervisors, say, wait_s)
        submitting.wait_for_leader(store, slurm, plane, say, wait_s)
        record = before or client.launch(store, spec, home)
        jobs = submitting.living(slurm, plane)
    print_line(f"control plane: {submitting.told(jobs)}; to end it: scancel --name {plane.job_name}")
    done = "was launched before" if before else "launched"
    print_line(f"{spec.name} {done}; folder {record.run_dir}. Look: supervisor status --run {spec.name} --etcd {etcd}")


def _checked_spec(file: Path) -> tuple[RunSpec, bool]:
    """Reads a run file. Returns false with it if this machine cannot check its config. Exits 2 with all its problems."""
    from supervisor.shell.inspect import client
    from supervisor.shell.runfile import parse

    try:
        spec = parse.load(file)
        try:
            problems, changes = client.check_titan(spec)
        except client.NotChecked as why:
            print_line(f"supervisor: {file}: {why}", err=True)
            return spec, False
        if problems:
            raise parse.RunFileError(problems)
        for change in changes:
            print_line(f"supervisor: {file}: {change}", err=True)
    except parse.RunFileError as error:
        for problem in error.problems:
            print_line(f"supervisor: {file}: {problem}", err=True)
        print_timeouts("(as written)", error.timeouts)
        raise typer.Exit(2) from None
    return spec, True


def _refuse_unsafe(file: Path, store: EtcdStore, spec: RunSpec) -> None:
    """Exits 2 with the unsafe timeouts, judged by what a run of the same program took; notes those that are short."""
    from supervisor.core.timeouts import solver
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.runfile import timeout_fit

    like, seen = timeout_fit.of_one_like_it(Mirror(store.list(keys.PREFIX)), spec)
    problems = [row.sentence for row in solver.unsafe(spec, seen)]
    for problem in problems:
        print_line(f"supervisor: {file}: {problem} (measured in run {like}, which trained the same)", err=True)
    if problems:
        print_timeouts(spec.name, solver.rows(spec, seen))
        raise typer.Exit(2)
    _note_what_is_short(spec, seen)


def _note_what_is_short(spec: RunSpec, seen: Measured = NOTHING) -> None:
    """Notes problems that do not keep the run from starting."""
    from supervisor.shell.control import webhook
    from supervisor.shell.runfile import timeout_fit

    for sentence in (*timeout_fit.short(spec, seen), *filter(None, [webhook.not_here(spec.policy.webhook_file)])):
        print_line(f"supervisor: {sentence}", err=True)


@commands.command(epilog="Example: supervisor pause --run demo")
def pause(run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Watch a run without acting on it; training goes on. No group is restarted or moved until `resume`."""
    with opened_store(etcd, home, security) as store:
        _, record = _changed(store, run, "pause", lambda c: replace(c, paused=True))
        print_line(f"{record.spec.name}: paused")


@commands.command(epilog='Example: supervisor resume demo --because "the data set is repaired"')
def resume(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, as with --run.")] = "",
    run: Run = "",
    because: Annotated[
        str, typer.Option(callback=text_option, help="Why a halted run may go on; the journal records it.")
    ] = "",
    they_are_down: Annotated[
        bool,
        typer.Option(
            "--they-are-down",
            help="Confirm that you have checked: nothing runs any more on the silent nodes of the run.",
        ),
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Act again after `pause`, or restart a halted run. A halted run (rung 4) starts again from its newest checkpoint."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client, status

        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, name or run, "resume", resumable=True)
        if status.run_status(mirror, record).phase == "halted" and not because.strip():
            print_line(
                f"supervisor: run {record.spec.name} is halted; give a reason to resume it: "
                f'supervisor resume {record.spec.name} --because "..." (what happened: supervisor incidents)',
                err=True,
            )
            raise typer.Exit(2)
        print_line(client.resume(store, mirror, record, because.strip(), they_are_down))


@commands.command(epilog="Example: supervisor stop --run demo")
def stop(run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Stop a run: all groups end after the same step. Its nodes are released. Prints how long it can take."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.inspect import client

        mirror, record = _changed(store, run, "stop", lambda c: replace(c, stop=True, suspended=False))
        print_line(f"{record.spec.name}: {client.stopping(mirror, record)}")


def _changed(store: EtcdStore, run: str, wish: str, change: Callable[[Control], Control]) -> tuple[Mirror, RunRecord]:
    """Changes the control record of a run that is not over. Returns the state before the change, and the run."""
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.inspect import client

    mirror = Mirror(store.list(keys.PREFIX))
    record = run_to_change(mirror, run, wish)
    client.refuse_ended(mirror, record, wish)
    client.change_control(store, record.spec.name, change)
    return mirror, record


@commands.command(epilog="Example: supervisor restart 1 --run demo")
def restart(
    group: Annotated[int, typer.Argument(metavar="GROUP", help="Number of the replica group.")],
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Restart the processes of a group on its node. The other groups go on, and no budget is charged."""
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client

        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, run, f"restart {group}")
        client.refuse_ended(mirror, record, "restart")
        client.restart(store, record, group)
        print_line(f"{record.spec.name}: group {group} will be restarted")
