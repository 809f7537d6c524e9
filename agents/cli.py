"""`supervisor-agent`: reads the command line, checks what can be checked at once, and becomes the shim."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from agents.shim import process

process.hold_notice()  # before the slow imports: the scheduler's notice may come before the shim can hear it

import typer  # noqa: E402

from agents.shim.settings import Settings  # noqa: E402
from supervisor.shell import failpoints  # noqa: E402
from supervisor.wire import address as addresses  # noqa: E402
from supervisor.wire import command_line, logged  # noqa: E402
from supervisor.wire import enrollment as wire_enrollment  # noqa: E402
from supervisor.wire.security import VARIABLE, SecurityError, checked, host_and_port  # noqa: E402
from supervisor.wire.version import missing  # noqa: E402

app = command_line.program("supervisor-agent", "Run one node: its shim, agent and trainers.")


@app.command()
def run(
    node: Annotated[str, typer.Option(help="Name of this node, unique in the etcd.")],
    home: Annotated[Path, typer.Option(help="Folder for the records and logs. Checkpoints are below it too.")],
    etcd: Annotated[str, typer.Option(help="HOST:PORT of etcd; separate several by commas.")],
    host: Annotated[str, typer.Option(help="The machine, as its scheduler names it. Default: the node's name.")] = "",
    address: Annotated[
        str,
        typer.Option(help="Address at which other nodes reach this one. auto: the address that faces the first etcd."),
    ] = "127.0.0.1",
    role: Annotated[
        str, typer.Option(help="trainer, or service: a service host carries the lighthouse and no ranks.")
    ] = "trainer",
    allocation: Annotated[str, typer.Option(help="Key of the allocation that gave this node.")] = "",
    slots: Annotated[int, typer.Option(help="Number of ranks that fit.")] = 1,
    lease_s: Annotated[int, typer.Option(help="Silence after which the node counts as lost, in whole seconds.")] = 5,
    report_s: Annotated[
        float, typer.Option(help="Seconds between reports of progress. Changes are reported at once.")
    ] = 5.0,
    metrics_port: Annotated[int, typer.Option(help="Port of the Prometheus metrics. 0: a free one.")] = 0,
    grace_s: Annotated[float, typer.Option(help="Seconds from TERM to KILL when the node itself is stopped.")] = 5.0,
    switch: Annotated[
        str,
        typer.Option(
            help="Switches of the host, outermost first, as spine.leaf: groups take nodes of one switch first."
        ),
    ] = "",
    cold: Annotated[bool, typer.Option("--cold", help="Use no warm processes: slower starts, less memory.")] = False,
    security: Annotated[
        str, typer.Option(envvar=VARIABLE, help="Security file (docs/SECURITY.md). Without it: loopback only.")
    ] = "",
) -> None:
    """Run a node until TERM. Exits 2 for bad input, 1 if another shim, a port or a full disk is in the way, or if no
    supervisor gives it a certificate."""
    process.open_standard_files()
    settings = Settings(
        node=node,
        host=host,
        home=home.resolve(),
        etcd=tuple(part.strip() for part in etcd.split(",") if part.strip()),
        address=address,
        role=role,
        allocation=allocation,
        slots=slots,
        lease_s=lease_s,
        report_s=report_s,
        metrics_port=metrics_port,
        grace_s=grace_s,
        switch=switch,
        cold=cold,
        security=str(Path(security).absolute()) if security else "",
    )
    settings = _resolved(settings)
    problem = settings.malformed() or _wrong_environment() or _not_installed()
    if problem is None:
        settings = _enrolled(settings)
        problem = settings.unsafe()
    if problem is not None:
        process.say(problem)
        raise typer.Exit(2)
    problem = _in_the_way(settings)
    if problem is not None:
        process.say(problem)
        raise typer.Exit(1)
    for name in (process.SHIM_PID, process.NODE_DIR):
        os.environ.pop(name, None)  # when submitted from another node, its next shim would take us for a leftover
    # a fresh image without typer: the shim lives as long as the node
    os.execv(sys.executable, [sys.executable, "-m", "agents.shim", *settings.arguments()])


@app.command()
def check(
    home: Annotated[Path, typer.Option(help="Folder on the disk to check: the --home of the nodes here.")] = Path("."),
    node: Annotated[
        str,
        typer.Option(
            help="A node that ran here. The result goes to etcd; a host that passes is freed (docs/NODES.md)."
        ),
    ] = "",
    etcd: Annotated[
        str, typer.Option(help="HOST:PORT of etcd, which lists the other nodes; separate several by commas.")
    ] = "",
    ranks: Annotated[int, typer.Option(min=1, help="Number of ranks that must fit, each with its own device.")] = 1,
    security: Annotated[str, typer.Option(envvar=VARIABLE, help="Security file of the node or of an operator.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine's devices, memory, disk and network. Also checks that devices compute right results. Exits 0 if no check
    failed, 1 if one failed or could not run."""
    # imported only here: a node must become the shim at once, and grpc takes longer to import than all the rest
    from agents.health.checks import hand
    from supervisor.ports.errors import PortError
    from supervisor.wire.printer import Printer, print_line

    endpoints = tuple(part.strip() for part in etcd.split(",") if part.strip())
    if node and not endpoints:
        process.say("--node needs --etcd: the result is written there")
        raise typer.Exit(2)
    try:
        for endpoint in endpoints:
            host_and_port(endpoint)
        results, follows = hand.by_hand(home, node, ranks, endpoints, checked(security, endpoints))
    except PortError as error:
        process.say(str(error))
        raise typer.Exit(1) from None
    except (SecurityError, ValueError) as error:  # NoSuchNode is one, and so is a malformed endpoint
        process.say(str(error))
        raise typer.Exit(2) from None
    if as_json:
        print_line(json.dumps([asdict(result) for result in results]))
    else:
        Printer(soft_wrap=not sys.stdout.isatty()).print(hand.render(results, follows))
    raise typer.Exit(int(any(result.outcome in ("failed", "unknown") for result in results)))


def _resolved(settings: Settings) -> Settings:
    """Replaces `auto` by an address of this machine. Prints the reason and exits 1 when there is none."""
    if not settings.etcd:
        return settings
    try:
        return replace(settings, address=addresses.told(settings.address, settings.etcd[0]))
    except ValueError:
        return replace(settings, address="127.0.0.1")  # Settings.problem reports the malformed endpoint
    except OSError as error:
        process.say(str(error))
        raise typer.Exit(1) from None


def _enrolled(settings: Settings) -> Settings:
    """Gets this node a certificate if its job was given a secret for that. Prints the reason and exits 1 if none comes."""
    given = os.environ.pop(wire_enrollment.VARIABLE, "")
    if not given:
        return settings
    from agents import enrollment

    try:
        process.say(f"node {settings.node} asks for its certificate")
        folder = settings.node_folder / "certificates"
        file = enrollment.enroll(settings.node, settings.allocation, folder, wire_enrollment.decode(given))
    except (enrollment.EnrollError, ValueError, OSError) as error:
        process.say(str(error))
        raise typer.Exit(1) from None
    return replace(settings, security=str(file))


def _wrong_environment() -> str | None:
    # the agent checks this too, but there the shim would start it again and again
    try:
        failpoints.armed()
        logged.wanted()
    except (failpoints.FailpointError, logged.LogFormatError) as error:
        return str(error)
    return None


def _not_installed() -> str | None:
    # the shim needs none of it, and would start an agent that ends at once, again and again
    if importlib.util.find_spec("pynvml") is not None:
        return None
    return f"a node {missing('pynvml')}"


def _in_the_way(settings: Settings) -> str | None:
    why = addresses.taken(settings.address, settings.metrics_port)
    if not why:
        return None
    return (
        f"cannot listen on {settings.address}:{settings.metrics_port}: {why}; "
        "give an --address of this machine and a free --metrics-port"
    )


def main() -> None:
    app()


if __name__ == "__main__":
    main()
