"""The command line: parses arguments and calls the shell. Exit codes: 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import io
import logging
import os
import sys

from supervisor.wire.command_line import ACT, LOOK, REPAIR, START, later, program
from supervisor.wire.logged import TextLine

__all__ = ["app", "main"]

COMMANDS = (
    (START, "up", "system", "Start etcd, a supervisor and a pool of local nodes."),
    (START, "init", "init", "Write a first run file from a few answers."),
    (START, "validate", "launch", "Check a run file, and start nothing."),
    (START, "launch", "launch", "Check a run file and start its run."),
    (START, "submit", "launch", "Start the control plane as Slurm jobs, and a run on it."),
    (START, "hold", "pools", "Hold nodes for runs, as a pool."),
    (START, "config", "config", "Show the TorchTitan config that a run file makes."),
    (START, "run", "system", "Run one supervisor: it leads, or stands by."),
    (START, "init-auth", "system", "Create etcd's users and roles and enable its checks."),
    (START, "down", "system", "End what `up` started, after a last checkpoint."),
    (LOOK, "status", "look", "Show a run's groups, steps, loss, quorum and budgets."),
    (LOOK, "top", "look", "Show a run live in the terminal."),
    (LOOK, "nodes", "look", "List the nodes, their health and what runs on them."),
    (LOOK, "pools", "pools", "List the pools, who uses them and when they end."),
    (LOOK, "incidents", "look", "List a run's failures: what was done, and why."),
    (LOOK, "explain", "look", "Explain an incident: what was seen and done, and why."),
    (LOOK, "logs", "logs", "Print the newest lines of the trainers' logs."),
    (LOOK, "stacks", "ask", "Show where each rank of a run is now: its Python stack."),
    (LOOK, "ledger", "ledger", "Account for every second of a run, by cause."),
    (LOOK, "wait", "runs", "Wait until a run trains, has made a step, or is finished."),
    (LOOK, "runs", "relaunch", "List the runs, show what one runs by, compare two."),
    (ACT, "sync", "sync", "Bring a folder of code to the nodes of a pool or run."),
    (ACT, "relaunch", "relaunch", "Change what a run trains by, on the nodes that it has."),
    (ACT, "scale", "relaunch", "Change the number of groups or spares of a live run."),
    (ACT, "pause", "runs", "Watch a run without acting on it; training goes on."),
    (ACT, "resume", "runs", "Act again after `pause`, or restart a halted run."),
    (ACT, "stop", "runs", "Stop a run: all groups end after the same step."),
    (ACT, "release", "pools", "Give all nodes of a pool back to the engine."),
    (ACT, "rm", "runs", "Remove a run that has ended; its name can be used again."),
    (ACT, "restart", "runs", "Restart the processes of a group on its node."),
    (ACT, "policy", "policy", "Show or change the policy of a run while it trains."),
    (ACT, "cordon", "hosts", "Place no more groups on a host; what runs there stays."),
    (ACT, "drain", "hosts", "Cordon a host and move its groups away one by one."),
    (ACT, "uncordon", "hosts", "Allow groups on hosts again."),
    (REPAIR, "doctor", "look", "Check this machine and the live system for problems."),
    (REPAIR, "exec", "ask", "Run a command on a node, and print its output."),
    (REPAIR, "debug", "ask", "Talk to ranks that stand at a breakpoint()."),
    (REPAIR, "support-bundle", "look", "Pack a run's state, journal and logs into an archive."),
    (REPAIR, "backup", "system", "Save the state of all runs to a file."),
    (REPAIR, "restore", "system", "Load a backup into an etcd that holds no state."),
)
"""Each command's heading, name, module in this package, and the first sentence of its help."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

app = program("supervisor", "Supervise fault-tolerant pretraining runs of TorchTitan and TorchFT.")
for _heading, _name, _module, _line in COMMANDS:
    later(app, _heading, _name, f"{__name__}.{_module}", _line)


def _add_commands() -> None:
    """Adds the commands of the other packages. They import the supervisor; the supervisor never imports them."""
    from importlib.metadata import entry_points  # slow to import, and not needed for a command of ours

    for point in sorted(entry_points(group="supervisor.commands"), key=lambda p: p.name):
        point.load()(app)


def _log_level() -> str:
    """Returns the log level that SUPERVISOR_LOG names; exits 2 if there is no such level."""
    level = os.environ.get("SUPERVISOR_LOG") or "WARNING"
    if level not in LEVELS:
        from supervisor.wire.printer import print_line

        print_line(
            f"supervisor: SUPERVISOR_LOG = {level!r} is no log level; set it to one of {', '.join(LEVELS)}", err=True
        )
        sys.exit(2)
    return level


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a file name may be invalid UTF-8
    handler = logging.StreamHandler()
    handler.setFormatter(TextLine("supervisor: %(message)s"))
    logging.basicConfig(level=_log_level(), handlers=[handler])
    if not {name for _, name, _, _ in COMMANDS}.intersection(sys.argv[1:2]):
        _add_commands()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(1)
    except ModuleNotFoundError as error:
        from supervisor.wire.printer import print_line
        from supervisor.wire.version import missing

        if not (why := missing(error.name or "")):
            raise
        print_line(f"supervisor: this command {why}", err=True)
        sys.exit(2)
