"""Commands that write and check a run file, and start its run. Each imports what it needs: few of them use Slurm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.checks import FOREIGN, Config, Given, Module, check_all, check_titan, read_given, read_run_file
from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    SecurityFile,
    credentials,
    endpoints_option,
    opened_store,
    print_timeouts,
    sentences,
)
from supervisor.core.model.measured import NOTHING, Measured
from supervisor.ports.errors import Fatal
from supervisor.shell.dev.home import system_folder
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.etcd import EtcdStore

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(commands)


Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the run. Default: the one in the run file.")]


ResumeFrom = Annotated[
    Path | None,
    typer.Option(
        "--resume-from",
        metavar="CHECKPOINT",
        help="Begin with another run's checkpoint (RUN_FOLDER/checkpoints/step-...), model, optimizer and step, "
        "whatever number of ranks and nodes its groups had.",
    ),
]


@commands.command(context_settings=FOREIGN, epilog="Example: supervisor validate examples/debug.toml")
def validate(
    given: Given = None,
    module: Module = "",
    config: Config = "",
    name: Name = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Check a run file, and start nothing. Needs no etcd. On Slurm it asks if the cluster would accept the run's jobs."""
    file, spec = read_given(given, module, config, name)
    _validate(file, spec, etcd, home, security)


@commands.command(context_settings=FOREIGN, epilog="Example: supervisor launch examples/debug.toml --follow")
def launch(
    given: Given = None,
    module: Module = "",
    config: Config = "",
    name: Name = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    resume_from: ResumeFrom = None,
    on: Annotated[
        str,
        typer.Option(
            "--on", metavar="POOL", help="Train on nodes of a pool (supervisor hold); the engine is asked for none."
        ),
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the run file, as `validate` does.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Start no group until each has a node (allocation.wait_for_all).")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Then show what the run waits for, its steps and its incidents until it ends. Exit code 0: finished. "
            "1: halted, stopped, or Ctrl-C, after which the run goes on.",
        ),
    ] = False,
) -> None:
    """Check a run file and start its run."""
    from supervisor.shell.code.local import tree_of
    from supervisor.shell.inspect import client

    file, spec = read_given(given, module, config, name, on)
    if wait:
        spec = replace(spec, allocation=replace(spec.allocation, wait_for_all=True))
    with sentences():
        begins_with = client.resumed_from(resume_from, spec) if resume_from is not None else None
    if check:
        _validate(file, spec, etcd, home, security)
        return
    with opened_store(etcd, home, security) as store:
        client.refuse_unfit(store, spec)  # before the check, which takes seconds
        with tree_of(store, spec.allocation.pool, credentials(home, security)) as tree:
            check_all(file, spec, etcd, home, security, tree)
        _refuse_unsafe(file, store, spec)
        record = client.launch(store, spec, home, print_line, begins_with)
        print_line(f"launched {spec.name}; folder {record.run_dir}. Look: supervisor status --run {spec.name}")
        if follow:
            _follow(store, spec.name)


def _follow(store: EtcdStore, run: str) -> None:
    """Follows a run until it ends. Exits 1 unless it is finished, also at Ctrl-C."""
    from supervisor.shell.inspect import follow

    try:
        phase = follow.follow(store, run, print_line, lambda sentence: print_line(f"supervisor: {sentence}", err=True))
    except KeyboardInterrupt:
        print_line(
            f"supervisor: run {run} goes on without this command. Look: supervisor top --run {run}. "
            f"End it: supervisor stop --run {run}",
            err=True,
        )
        raise typer.Exit(1) from None
    if phase != "finished":
        raise typer.Exit(1)


@commands.command(
    epilog="Example: supervisor submit run.toml --etcd https://etcd-0:2379,https://etcd-1:2379 --home /shared/runs --security /local/certs/supervisor.toml"
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
    resume_from: ResumeFrom = None,
    security: SecurityFile = "",
) -> None:
    """Start the control plane as Slurm jobs, and a run on it. A repeated `submit` keeps the jobs and the run that exist (docs/SLURM.md)."""
    from supervisor.shell.control.system_id import system_id
    from supervisor.shell.engines.registry import Context, before_launch
    from supervisor.shell.engines.slurm import control_plane as submitting
    from supervisor.shell.engines.slurm.commands import Commands
    from supervisor.shell.engines.slurm.engine import SlurmEngine
    from supervisor.shell.inspect import client

    spec = read_run_file(file, "")
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
        begins_with = client.resumed_from(resume_from, spec) if resume_from is not None and before is None else None
        check_titan(file, spec)
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
        record = before or client.launch(store, spec, home, print_line, begins_with)
        jobs = submitting.living(slurm, plane)
    print_line(f"control plane: {submitting.told(jobs)}; to end it: scancel --name {plane.job_name}")
    done = "was launched before" if before else "launched"
    print_line(f"{spec.name} {done}; folder {record.run_dir}. Look: supervisor status --run {spec.name} --etcd {etcd}")


def _validate(file: Path, spec: RunSpec, etcd: str, home: Path, security: str) -> None:
    checked = check_all(file, spec, etcd, home, security)
    _note_what_is_short(spec)
    print_line(f"{file}: {_takes(spec)}")
    if not spec.trainer.command and spec.titan.data.source != "tokens":
        print_line(
            f"{file}: data: each group reads a share of its own, and failures cost or repeat samples; from a token store each "
            "is used once (docs/DATA.md)"
        )
    print_line(f"{file}: run {spec.name!r} is valid{'' if checked else ', as far as it was checked'}")


def _takes(spec: RunSpec) -> str:
    """Says how many nodes the run asks for."""
    groups, allocation = spec.groups, spec.allocation
    more = allocation.nodes - groups.nodes
    parts = [f"{groups.count} x {groups.nodes_per_group} for its groups"]
    parts += [f"{more} more"] if more else []
    parts += [f"{allocation.spares} as spares"] if allocation.spares else []
    return f"asks for {allocation.nodes + allocation.spares} nodes of {groups.slots} rank{'s' if groups.slots > 1 else ''} each: {', '.join(parts)}"


def _refuse_unsafe(file: Path, store: EtcdStore, spec: RunSpec) -> None:
    """Exits 2 with the unsafe timeouts, judged by what a run of the same program took; notes those that are short."""
    from supervisor.core.timeouts import solver
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.runfile import launch_notes

    problems, seen = launch_notes.unsafe(Mirror(store.list(keys.PREFIX)), spec)
    for problem in problems:
        print_line(f"supervisor: {file}: {problem}", err=True)
    if problems:
        print_timeouts(spec.name, solver.rows(spec, seen))
        raise typer.Exit(2)
    _note_what_is_short(spec, seen)


def _note_what_is_short(spec: RunSpec, seen: Measured = NOTHING) -> None:
    """Notes problems that do not keep the run from starting."""
    from supervisor.shell.runfile import launch_notes

    for sentence in launch_notes.notes(spec, seen):
        print_line(f"supervisor: {sentence}", err=True)
