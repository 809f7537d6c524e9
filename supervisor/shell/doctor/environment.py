"""What the shell's environment holds that is kept from our processes, or that may harm them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from supervisor.shell.doctor.finding import Finding, note
from supervisor.wire import environment


def examine(of: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Nothing where there is nothing to tell."""
    for names, rule in environment.found(of, "removed"):
        yield note(f"in the environment: {', '.join(names)}: {rule.why}", "nothing: they are kept from all processes")
    for names, rule in environment.found(of, "harmful"):
        yield note(f"in the environment: {', '.join(names)}: {rule.why}", "unset it, if you do not need it")
    if names := environment.proxies(of):
        yield note(
            f"in the environment: {', '.join(names)}: webhooks and trainers' own downloads use the proxy",
            "nothing: etcd, heals and all else between nodes do without it",
        )
