"""`supervisor policy`: shows the policy of a run, and changes it while the run trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from supervisor.cli.common import (
    HOME,
    Etcd,
    Home,
    Json,
    Name,
    Run,
    SecurityFile,
    one_name,
    opened_mirror,
    opened_store,
    print_timeouts,
    run_to_change,
    show,
    text_option,
)
from supervisor.wire import command_line, keys
from supervisor.wire.printer import print_line

commands = command_line.commands(help_="Show or change the policy of a run while it trains.")


def register(app: typer.Typer) -> None:
    """Adds `policy` to the command line."""
    app.add_typer(commands, name="policy")


@commands.command("show", epilog="Example: supervisor policy show demo")
def show_policy(
    name: Name = "",
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
    as_json: Json = False,
) -> None:
    """Show the policy in force, its version and why it was changed."""
    with opened_mirror(etcd, home, security) as mirror:
        from pydantic_core import to_jsonable_python

        from supervisor.shell.inspect import client
        from supervisor.shell.runfile import live_policy
        from supervisor.wire.records import PolicySet

        record = client.choose_run(mirror, one_name(name, run))
        was_set = mirror.record(keys.policy(record.spec.name), PolicySet)
        about = "as launched" if was_set is None else f"version {was_set.version}, because: {was_set.because}"
        body = {
            "run": record.spec.name,
            "version": was_set.version if was_set is not None else 0,
            "because": was_set.because if was_set is not None else "",
            "policy": to_jsonable_python(record.spec.policy),
        }
        earlier = was_set.earlier if was_set is not None else []
        body["earlier"] = to_jsonable_python(earlier)
        before = [f"  version {e.version}: {', '.join(e.changes)}, because: {e.because}" for e in earlier]
        head = [f"{record.spec.name}: {about}", *(["before it:", *before] if before else [])]
        show(body, as_json, "\n".join([*head, *live_policy.lines(record.spec.policy)]))


@commands.command("set", epilog='Example: supervisor policy set mode=observe --because "first week" --run demo')
def set_policy(
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            callback=text_option,
            help="A key of [policy] in the run file, and its new value: hang.factor=20.",
        ),
    ],
    because: Annotated[str, typer.Option(callback=text_option, help="The reason, which the journal records.")],
    run: Run = "",
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Change the policy of a live run: all changes, or none. They are checked like a run file, versioned and journaled."""
    if not because.strip():
        print_line("supervisor: --because is empty: give a reason", err=True)
        raise typer.Exit(2)
    with opened_store(etcd, home, security) as store:
        from supervisor.shell.control import webhook
        from supervisor.shell.control.state_cache import Mirror
        from supervisor.shell.inspect import client
        from supervisor.shell.runfile import live_policy, parse, timeout_fit

        mirror = Mirror(store.list(keys.PREFIX))
        record = run_to_change(mirror, run, "policy set", resumable=True)
        client.refuse_over(mirror, record, "policy set")
        try:
            seen = timeout_fit.remembered(mirror, record.spec.name)
            done = live_policy.set_policy(store, record, changes, because.strip(), seen)
        except parse.RunFileError as error:
            for problem in error.problems:
                print_line(f"supervisor: {problem}", err=True)
            print_timeouts(record.spec.name, error.timeouts)
            raise typer.Exit(2) from None
        for sentence in timeout_fit.short(replace(record.spec, policy=done.policy), seen):
            if sentence not in timeout_fit.short(record.spec, seen):
                print_line(f"supervisor: {sentence}", err=True)
        file = done.policy.webhook_file
        if file != record.spec.policy.webhook_file and (missing := webhook.not_here(file)):
            print_line(f"supervisor: {missing}", err=True)
        print_line(f"{record.spec.name}: policy version {done.version}: {', '.join(changes)}")
