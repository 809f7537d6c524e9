"""Commands that start a run and steer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Run,
    SecurityFile,
    app,
    endpoints_in,
    endpoints_option,
    opened_store,
    print_timeouts,
    run_to_change,
    sentences,
    text_option,
)
from supervisor.core import timeouts
from supervisor.core.measured import NOTHING, Measured
from supervisor.core.spec import RunSpec
from supervisor.ports.errors import Fatal
from supervisor.shell import client, fit, notify, runfile, status
from supervisor.shell import submit as submitting
from supervisor.shell import up as up_module
from supervisor.shell.engines.slurm_commands import Commands
from supervisor.shell.identity import system_id
from supervisor.shell.mirror import Mirror
from supervisor.shell.store import EtcdStore
from supervisor.wire import keys
from supervisor.wire.printer import print_line
from supervisor.wire.records import Control, RunRecord


@app.command(epilog="Example: supervisor launch examples/debug.toml")
def launch(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file (docs/RUN_FILE.md).")],
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the run file.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Start no group before there is a node for each (allocation.wait_for_all).")
    ] = False,
) -> None:
    """Check a run file and start the run."""
    spec = _checked_spec(file)
    if wait:
        spec = replace(spec, allocation=replace(spec.allocation, wait_for_all=True))
    with sentences():
        endpoints = endpoints_in(etcd, home)
        note = client.check_engine(spec, endpoints, security or up_module.security_of(home))
    if note:
        print_line(f"supervisor: {note}", err=True)
    if lacks := fit.pool_short(spec, up_module.system_folder(home)):
        print_line(f"supervisor: {lacks}", err=True)
    if check:
        _note_what_is_short(spec)
        print_line(f"{file}: run {spec.name!r} is right")
        return
    with opened_store(etcd, home, security) as store:
        _refuse_unsafe(file, store, spec)
        record = client.launch(store, spec, home)
    print_line(f"launched {spec.name}; folder {record.run_dir}. Look: supervisor status --run {spec.name}")


@app.command(
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
    supervisors: Annotated[int, typer.Option(min=1, help="Jobs of the control plane, each on another host.")] = 2,
    partition: Annotated[
        str, typer.Option(help="Partition of those jobs, as one without GPUs. Default: the run file's.")
    ] = "",
    wait_s: Annotated[
        float, typer.Option(min=0, help="How long Slurm may take to start them; they stay in the queue after it.")
    ] = 600.0,
    security: SecurityFile = "",
) -> None:
    """Start the control plane as jobs of Slurm, and the run. Again: goes on with what is there (docs/SLURM.md)."""
    spec = _checked_spec(file)
    if spec.allocation.engine != "slurm":
        print_line(
            f'supervisor: {file}: allocation.engine = "{spec.allocation.engine}": submit is for "slurm"', err=True
        )
        raise typer.Exit(2)

    def say(sentence: str) -> None:
        print_line(sentence, err=True)

    with opened_store(etcd, home, security) as store:
        before = client.launched_before(store, spec)
        if before is None:
            _refuse_unsafe(file, store, spec)
        note = client.check_engine(spec, etcd.split(","), security)
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


def _checked_spec(file: Path) -> RunSpec:
    """Exits 2 with all that is wrong with a run file."""
    try:
        spec = runfile.load(file)
        problems = client.check_titan(spec)
        if problems:
            raise runfile.RunFileError(problems)
    except runfile.RunFileError as error:
        for problem in error.problems:
            print_line(f"supervisor: {file}: {problem}", err=True)
        print_timeouts("(as written)", error.timeouts)
        raise typer.Exit(2) from None
    return spec


def _refuse_unsafe(file: Path, store: EtcdStore, spec: RunSpec) -> None:
    """Exits 2 with the timeouts that are unsafe by what a run like this one was seen to take; notes those that are short."""
    like, seen = fit.of_one_like_it(Mirror(store.list(keys.PREFIX)), spec)
    problems = [row.sentence for row in timeouts.unsafe(spec, seen)]
    for problem in problems:
        print_line(f"supervisor: {file}: {problem} (as run {like} was seen, which trained the same)", err=True)
    if problems:
        print_timeouts(spec.name, timeouts.rows(spec, seen))
        raise typer.Exit(2)
    _note_what_is_short(spec, seen)


def _note_what_is_short(spec: RunSpec, seen: Measured = NOTHING) -> None:
    """And what else may start, and is not as it should be."""
    for sentence in (*fit.short(spec, seen), *filter(None, [notify.not_here(spec.policy.webhook_file)])):
        print_line(f"supervisor: {sentence}", err=True)


@app.command(epilog="Example: supervisor pause --run demo")
def pause(run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """Observe everything and do nothing: no restart, no move. Training goes on."""
    _control(run, etcd, home, security, "pause", "paused", lambda c: replace(c, paused=True))


@app.command(epilog='Example: supervisor resume demo --because "the data set is mended"')
def resume(
    name: Annotated[str, typer.Argument(metavar="[RUN]", help="Name of the run, as with --run.")] = "",
    run: Run = "",
    because: Annotated[
        str, typer.Option(callback=text_option, help="Why a halted run may go on: it is kept in the journal.")
    ] = "",
    they_are_down: Annotated[
        bool,
        typer.Option(
            "--they-are-down",
            help="Nothing runs any more on the run's nodes that nobody hears: you have looked.",
        ),
    ] = False,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Act again after `pause`; or let a run out of a halt (rung 4): it starts again from its newest checkpoint."""
    with opened_store(etcd, home, security) as store:
        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, name or run, "resume", resumable=True)
        if status.run_status(mirror, record).phase == "halted" and not because.strip():
            print_line(
                f"supervisor: run {record.spec.name} is halted; say why it may go on: "
                f'supervisor resume {record.spec.name} --because "..." (what happened: supervisor incidents)',
                err=True,
            )
            raise typer.Exit(2)
        print_line(client.resume(store, mirror, record, because.strip(), they_are_down))


@app.command(epilog="Example: supervisor stop --run demo")
def stop(run: Run = "", etcd: Etcd = "", home: Home = HOME, security: SecurityFile = "") -> None:
    """End the run cleanly: all groups stop after the same step, and its nodes are given back; in a bounded time, which it prints."""
    _control(run, etcd, home, security, "stop", client.stopping, lambda c: replace(c, stop=True, suspended=False))


def _control(
    run: str,
    etcd: str,
    home: Path,
    security: str,
    wish: str,
    said: str | Callable[[Mirror, RunRecord], str],
    change: Callable[[Control], Control],
) -> None:
    with opened_store(etcd, home, security) as store:
        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, run, wish)
        client.refuse_ended(mirror, record, wish)
        client.change_control(store, record.spec.name, change)
        print_line(f"{record.spec.name}: {said if isinstance(said, str) else said(mirror, record)}")


@app.command(epilog="Example: supervisor restart 1 --run demo")
def restart(
    group: Annotated[int, typer.Argument(metavar="GROUP", help="Number of the replica group.")],
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Start a group's processes again where they are; the others go on. Draws on no budget."""
    with opened_store(etcd, home, security) as store:
        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, run, f"restart {group}")
        client.refuse_ended(mirror, record, "restart")
        client.restart(store, record, group)
        print_line(f"{record.spec.name}: group {group} will be restarted")
