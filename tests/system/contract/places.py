"""The engines' places in these tests: this machine, and a real Slurm. The nodes are sleeping stand-ins for agents."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from fault_injection.testbed.own_slurm import Slurm
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec, SlurmSpec
from supervisor.ports.engine import Engine, Request
from supervisor.ports.errors import Retryable
from supervisor.shell.engines import local
from supervisor.shell.engines.local import LocalEngine, Pool, PoolNode
from supervisor.shell.engines.slurm import commands
from supervisor.shell.engines.slurm.engine import SlurmEngine

NODES = ("n1", "n2", "n3")
WITHIN_S = 60.0


class Place(Protocol):
    """One engine's world of three nodes."""

    def engine(self, system: str = "") -> Engine:
        """A new engine, with no memory of another's calls."""
        ...

    def request(self, key: str, **about: Any) -> Request: ...

    def running(self, key: str) -> int:
        """The number of the key's allocations that live or wait: one, or there is a mistake."""
        ...

    def take_away(self, key: str) -> None:
        """Takes the allocation away, as a scheduler does."""
        ...

    def ask_and_lose_the_answer(self, request: Request) -> None:
        """Applies the request, but loses the answer, so that the caller does not know."""
        ...


def request(key: str, **about: Any) -> Request:
    return Request(**{"key": key, "run": "run", "slots": 1, "lease_s": 5, **about})


class LocalPlace:
    def __init__(self, home: Path) -> None:
        self._home = home
        self.started: dict[str, list[subprocess.Popen[bytes]]] = {}
        Pool(nodes=tuple(PoolNode(name) for name in NODES), etcd="127.0.0.1:1").save(home)

    def engine(self, system: str = "") -> Engine:
        return LocalEngine(self._home / system)

    request = staticmethod(request)

    def running(self, key: str) -> int:
        living = [p for p in self.started.get(key, ()) if p.poll() is None]
        waits = any(g.key == key and g.state == "pending" for g in self.engine().list())
        return len(living) + waits

    def take_away(self, key: str) -> None:
        LocalEngine(self._home).take_away(key, "taken by the test")

    def ask_and_lose_the_answer(self, request: Request) -> None:
        self.engine().acquire(request)


class SlurmPlace:
    def __init__(self, lab: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab = lab
        self.system = secrets.token_hex(5)  # the jobs of the tests before are in the lists still
        self.folder = folder
        self._monkeypatch = monkeypatch
        self.agent = executable(folder / "agent", f'echo "$@" >> {folder}/told-"$SLURM_JOB_ID"\nexec sleep 600')
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)

    def engine(self, system: str = "") -> SlurmEngine:
        return SlurmEngine(["127.0.0.1:1"], "", system or self.system)

    def request(self, key: str, slurm: dict[str, Any] | None = None, **about: Any) -> Request:
        how = SlurmSpec(
            **{"agent_command": str(self.agent), "node_folder": str(self.folder / "nodes"), **(slurm or {})}
        )
        spec = AllocationSpec(engine="slurm", slurm=how)
        return Request(**{"key": key, "run": "run", "slots": 1, "lease_s": 5, "spec": spec, **about})

    def jobs(self, key: str, system: str = "") -> list[dict[str, Any]]:
        """All that Slurm knows of the key, the oldest first."""
        found = [
            j for j in self.lab.jobs() if j["comment"].split()[:1] == [f"supervisor/{system or self.system}/{key}"]
        ]
        return sorted(found, key=lambda job: int(job["job_id"]))

    def running(self, key: str) -> int:
        return sum(job["job_state"] in ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED") for job in self.jobs(key))

    def take_away(self, key: str) -> None:
        self.lab.cancel(self.jobs(key)[0]["job_id"])

    def ask_and_lose_the_answer(self, request: Request) -> None:
        with self.instead("sbatch", 'REAL "$@" >/dev/null; exec sleep 60'), self._monkeypatch.context() as patch:
            patch.setattr(commands, "COMMAND_S", 1.0)
            engine = self.engine()
            engine._commands = commands.Commands(1.0)
            with pytest.raises(Retryable):
                engine.acquire(request)

    @contextmanager
    def instead(self, program: str, script: str) -> Iterator[Path]:
        """The engine finds this script under the program's name; REAL in it is the real one. Yields a file in which
        every call is a line."""
        real = subprocess.run(["which", program], capture_output=True, text=True, check=True).stdout.strip()
        calls = self.folder / f"calls-{program}"
        calls.touch()
        folder = self.folder / f"instead-{program}"
        folder.mkdir(exist_ok=True)
        executable(folder / program, f'echo "$*" >> {calls}\n{script.replace("REAL", real)}')
        with self._monkeypatch.context() as patch:
            patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            yield calls


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


@contextmanager
def local_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPlace]:
    place = LocalPlace(home)
    real = subprocess.Popen

    def start(command: list[str], **about: Any) -> Any:
        process = real(["sleep", "600"], **about)
        place.started.setdefault(command[command.index("--allocation") + 1], []).append(process)
        return process

    monkeypatch.setattr(local.subprocess, "Popen", start)
    try:
        yield place
    finally:
        for processes in place.started.values():
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()


def grants(engine: Engine) -> dict[str, Grant]:
    return {g.key: g for g in engine.list()}


def become(engine: Engine, key: str, state: str, within_s: float = WITHIN_S) -> Grant:
    """The grant, once it is in this state."""

    def there() -> Grant | None:
        grant = grants(engine).get(key)
        return grant if grant is not None and grant.state == state else None

    return eventually(there, within_s, f"{key} is {state}")


def forgotten(engine: Engine, key: str, within_s: float = WITHIN_S) -> None:
    """Releases the allocation as the driver does: again and again until the engine no longer knows it."""

    def gone() -> bool:
        engine.release(key)
        return key not in grants(engine)

    eventually(gone, within_s, f"{key} is given back")


def with_slurm(request: Request, **about: Any) -> Request:
    """The request with other settings of Slurm."""
    return replace(request, spec=replace(request.spec, slurm=replace(request.spec.slurm, **about)))
