"""Commands that a person runs on a node, or in the place of a rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from supervisor.ports.errors import Fatal
from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking, client
from supervisor.wire.node_requests import NodeRequest
from supervisor.wire.person import who

LIMIT_S = 60.0
LIMIT_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The outcome of a command."""

    node: str
    code: int | None
    """Exit code, negative for a signal; None: it was ended, or could not be run, as `error` says."""
    stdout: str
    stderr: str
    error: str = ""


def request(
    mirror: Mirror, where: str, run: str, command: Sequence[str], limit_s: float = LIMIT_S, limit_kib: int = LIMIT_KIB
) -> NodeRequest:
    """Returns the request to the named node, or to that of a rank of the run, GROUP.RANK. Raises Fatal if there is
    none."""
    nodes = asking.registered(mirror)
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", where)
    most_bytes = limit_kib * 1024
    if found is None or where in nodes:
        if where not in nodes:
            raise Fatal(f"there is no node {where!r}; registered: {', '.join(sorted(nodes)[:10]) or 'none'}")
        return NodeRequest(
            node=where, what="exec", by=who(), limit_s=limit_s, command=tuple(command), most_bytes=most_bytes
        )
    record = client.choose_run(mirror, run)
    group, rank = int(found[1]), int(found[2])
    client.require(record, group, rank)
    node = asking.node_of(mirror, record.spec.name, group, rank)
    return NodeRequest(
        node=node, what="exec", by=who(), limit_s=limit_s, command=tuple(command), most_bytes=most_bytes,
        run=record.spec.name, group=group, rank=rank,
    )  # fmt: skip


def execute(
    store: Store, mirror: Mirror, wanted: NodeRequest, on_text: Callable[[str, str], None] = lambda stream, text: None
) -> Executed:
    """Runs it. `on_text` gets the stream, `stdout` or `stderr`, and its text as it comes. Raises PortError."""
    code, error, texts = None, "", {"stdout": "", "stderr": ""}
    with closing(asking.ask(store, mirror, {wanted.node: wanted})) as answers:
        for said in answers:
            error = said.error
            for item in said.items:
                stream = "stderr" if item.get("stream") == "stderr" else "stdout"
                if "code" in item:
                    code = item["code"] if isinstance(item["code"], int) else 1
                else:
                    text = str(item.get("text", ""))
                    texts[stream] += text
                    on_text(stream, text)
    return Executed(
        node=wanted.node, code=None if error else code, stdout=texts["stdout"], stderr=texts["stderr"], error=error
    )
