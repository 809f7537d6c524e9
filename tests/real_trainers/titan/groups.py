"""Real trainers for tests: forked from one warm process (or started cold), with a lighthouse of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fault_injection.in_rank import causes
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import TitanSpec, TorchFTSpec
from supervisor.wire.address import free_port
from supervisor.wire.programs import QUORUM_IDS_ABOVE
from supervisor.wire.records import CheckpointMark, Progress, TrainerLaunch, decode, encode

STEPS_WITHIN_S = 60.0


class Lighthouse:
    """Runs titan_actor.lighthouse as a child."""

    def __init__(
        self,
        heartbeat_timeout_ms: int = 1000,
        join_timeout_ms: int = 3000,
        min_replicas: int = 1,
        quorum_ids_above: int = 0,
    ) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "titan_actor.lighthouse", f"--min-replicas={min_replicas}"),
                f"--join-timeout-ms={join_timeout_ms}",
                f"--heartbeat-timeout-ms={heartbeat_timeout_ms}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, QUORUM_IDS_ABOVE: str(quorum_ids_above)},
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])
        self.address = f"127.0.0.1:{self.port}"

    def beat(self, ids: list[str]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"beat": ids}) + "\n")
        self.process.stdin.flush()

    def close(self) -> int:
        with self.process:
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                return self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                return self.process.wait()


class Gate:
    """Holds TorchFT's connections back until a trainer has reported that it is built and the test lets it in."""

    def __init__(self, lighthouse: Lighthouse, port: int = 0) -> None:
        self._lighthouse = lighthouse
        self._server = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.built: list[str] = []
        self.held = 0
        self.open = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._server.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            first = client.recv(65536)
            if first.startswith(b"BUILT "):
                self.built.append(first.decode())
                # the first word gets no answer: the trainer sends it again
                if len(self.built) > 1:
                    self.open.wait()
                    client.sendall(b"OK\n")
                return
            self.held += 1
            self.open.wait()
            with socket.create_connection(("127.0.0.1", self._lighthouse.port)) as upstream:
                upstream.sendall(first)
                back = threading.Thread(target=pump, args=(upstream, client), daemon=True)
                back.start()
                pump(client, upstream)

    def close(self) -> None:
        self.open.set()
        self._server.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


class Warm:
    """The warm process, with the requests that the shim makes."""

    def __init__(self, **environment: str) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "titan_actor.warm", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            self.hello = self._heard()
        except BaseException:
            self._ours.close()
            self.process.kill()
            self.process.wait()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        self._ours.send(json.dumps(request).encode())
        return self._heard()

    def tell(self, **request: Any) -> None:
        """Sends what has no answer."""
        self._ours.send(json.dumps(request).encode())

    def _heard(self) -> dict[str, Any]:
        eventually(lambda: select.select([self._ours], [], [], 0)[0], 60, "the warm process answers")
        answer: dict[str, Any] = json.loads(self._ours.recv(65536))
        return answer

    def close(self) -> int:
        self._ours.close()
        return self.process.wait(30)


class Rank:
    """One trainer process."""

    def __init__(self, launch: TrainerLaunch, pid: int) -> None:
        self.launch, self.pid = launch, pid
        self.folder = Path(launch.rank_dir)
        self._status: int | None = None

    @property
    def progress(self) -> Progress | None:
        try:
            return decode((self.folder / "progress.json").read_bytes(), Progress)
        except FileNotFoundError:
            return None

    @property
    def step(self) -> int:
        return self.progress.step if self.progress else 0

    def reached(self, step: int, commits: int = 0, within_s: float = STEPS_WITHIN_S) -> None:
        """Waits until `step` is committed, and this process has committed `commits` steps."""

        def there() -> bool:
            progress = self.progress
            assert self.running or (progress and progress.step >= step), f"{self.log()[-3000:]}"
            return progress is not None and progress.step >= step and progress.commits >= commits

        eventually(there, within_s, f"step {step} of group {self.launch.group}")

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        text = (self.folder / "steps.jsonl").read_text() if (self.folder / "steps.jsonl").exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in found if not kinds or line["event"] in kinds]

    def digests(self) -> dict[int, str]:
        return {line["step"]: line["value"] for line in self.lines("digest")}

    def log(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(10)
            asking.connect(str(self.folder / "command.sock"))
            with asking.makefile("rwb") as lines:
                lines.write(json.dumps({"do": do, **more}).encode() + b"\n")
                lines.flush()
                answer: dict[str, Any] = json.loads(lines.readline())
                return answer

    def ask_when_there(self, do: str, **more: Any) -> dict[str, Any]:
        """Sends a request as soon as the rank listens."""
        eventually((self.folder / "command.sock").exists, STEPS_WITHIN_S, "command.sock")
        return self.ask(do, **more)

    @property
    def running(self) -> bool:
        if self._status is None:
            # we are its subreaper, or its parent
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is None

    def exit_code(self, deadline_s: float = STEPS_WITHIN_S) -> int:
        """Waits for its end; returns its exit code, or minus the signal that ended it."""
        eventually(lambda: not self.running, deadline_s, f"group {self.launch.group} ends")
        assert self._status is not None
        return os.waitstatus_to_exitcode(self._status)

    def order(self, cause: str) -> None:
        """Orders the rank to suffer this from its next step on, once it looks for orders."""
        launch = self.launch
        causes.order(launch.run_dir, launch.group, launch.generation, launch.rank, causes.Order(cause=cause))

    def stopped(self) -> None:
        """Waits until the rank has stopped itself."""

        def is_stopped() -> bool:
            assert self.running, self.log()[-3000:]
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        eventually(is_stopped, STEPS_WITHIN_S, f"group {self.launch.group} stops itself")

    def signal(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.exit_code()


class Groups:
    """Starts ranks in one run, and ends them all."""

    def __init__(self, top: Path, warm: Warm, lighthouse: Lighthouse) -> None:
        self.top, self.warm, self.lighthouse = top, warm, lighthouse
        self.run_dir = top / "run"
        self.ranks: list[Rank] = []

    def launch(self, group: int, generation: int = 1, rank: int = 0, **fields: Any) -> TrainerLaunch:
        folder = self.top / f"run.{group}.{generation}.{rank}"
        folder.mkdir(exist_ok=True)
        names = ("recipe", "steps", "overrides", "data", "checkpoint_interval_steps", "digest_interval_steps")
        batch = ("global_batch", "max_accumulation", "shrunk_lr")
        titan = {name: fields.pop(name) for name in (*names, *batch, "checkpoints_kept") if name in fields}
        titan = {"recipe": "llama3-debug-small", "steps": 1000, "digest_interval_steps": 1, **titan}
        values: dict[str, Any] = {
            "world_size": 1,
            "groups": 2,
            "min_groups": 1,
            "node_address": "127.0.0.1",
            "lighthouse": self.lighthouse.address,
            "torchft": TorchFTSpec(),
            **fields,
        }
        launch = TrainerLaunch(
            run="run",
            group=group,
            generation=generation,
            rank=rank,
            node=f"node-{group}",
            master_port=values.pop("master_port", None) or free_port(),
            run_dir=str(self.run_dir),
            rank_dir=str(folder),
            titan=TitanSpec(**titan),
            **values,
        )
        (folder / "launch.json").write_bytes(encode(launch))
        return launch

    def start(self, group: int, environment: dict[str, str] | None = None, **fields: Any) -> Rank:
        """Starts a rank, forked from the warm process."""
        launch = self.launch(group, **fields)
        folder = Path(launch.rank_dir)
        answer = self.warm.ask(
            launch=str(folder / "launch.json"),
            log=str(folder / "output.log"),
            env={"SUPERVISOR_NO_GATE": "1", **(environment or {})},
        )
        rank = Rank(launch, answer["pid"])
        self.ranks.append(rank)
        return rank

    def start_group(self, group: int, world_size: int, **fields: Any) -> list[Rank]:
        port = free_port()
        return [self.start(group, rank=n, world_size=world_size, master_port=port, **fields) for n in range(world_size)]

    def start_obeying(self, group: int, **fields: Any) -> Rank:
        """Starts a rank that obeys orders, as a program of its own."""
        return self.start_cold(group, module="fault_injection.in_rank.trainer", **fields)

    def start_cold(
        self,
        group: int,
        environment: dict[str, str] | None = None,
        module: str = "titan_actor.trainer",
        **fields: Any,
    ) -> Rank:
        """Starts a rank, as a program of its own."""
        launch = self.launch(group, **fields)
        folder = Path(launch.rank_dir)
        with open(folder / "output.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder / "launch.json")],
                env={**os.environ, "SUPERVISOR_NO_GATE": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        rank = Rank(launch, process.pid)
        # Rank reaps it: Popen must not warn that it did not
        process.returncode = 0
        self.ranks.append(rank)
        return rank

    def close(self) -> None:
        for rank in self.ranks:
            if rank.running:
                rank.kill()


def complete(run_dir: Path) -> list[CheckpointMark]:
    """Complete checkpoints on disk, the oldest first."""
    marks = [decode(file.read_bytes(), CheckpointMark) for file in run_dir.glob("checkpoints/*/complete.json")]
    return sorted(marks, key=lambda mark: mark.step)


def assert_equal_digests(*ranks: Rank, at_least: int = 3) -> None:
    """Checks that all ranks hashed the same state at every step that they share."""
    tables = [rank.digests() for rank in ranks]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    assert len(shared) >= at_least, f"only {shared} shared"
    different = [step for step in shared if len({table[step] for table in tables}) > 1]
    assert not different, f"the replicas differ at steps {different} of {shared}"
