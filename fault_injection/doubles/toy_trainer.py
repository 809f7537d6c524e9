"""A stand-in for titan_actor.trainer, controlled by keys of `titan.overrides` that begin with `toy.`.

toy.mode: "idle" (default) steps without torch; "exit" ends at once; "torchft" steps in a real TorchFT quorum; "quorum"
does so too, but with TorchFT's native manager alone: without torch and collectives it starts in a fraction of a second;
"model" is toy_model.py: several ranks a group, collectives, a loss, checkpoints.
toy.exit_code, toy.build_s, toy.ignore_term, toy.step_s, toy.fail_at (rank 0 only): as their names have it.
toy.needs: a path without which it fails at once.
toy.raise_at: it raises after this step, counted by itself from 1. toy.segfault_at: the kernel ends it there.
toy.hog: once this path exists it takes memory (at most 1 GiB) until something ends it.
toy.saves: while this path exists it reports that it writes its checkpoints (idle only; else none is written).
toy.keeps: the writer saves checkpoints, and a start from disk goes on from one (quorum only); it ends at the drain's
step.
toy.stop_at: its step does not move any more, though it lives. toy.child: it leaves a process in a session of its own.
toy.leaves: it leaves daemons, which are the shim's children at once, whose pids are in left.json.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from supervisor.wire import checkpoints, sockets
from supervisor.wire.records import PEERS_GONE, CheckpointMark, Progress, TrainerLaunch, decode, encode
from titan_actor import torchft_names
from titan_actor.ledger import write_error_file


class ToyError(Exception):
    """An exception like a bug in a real program."""


def leave(how: str) -> int:
    """Leaves a daemon, and returns its pid. marked: another program. forked: this one. bare: another program without any environment."""
    report, answer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os.write(answer, str(os.getpid()).encode())
            if how == "forked":
                while True:
                    time.sleep(1000)
            os.execve("/bin/sleep", ["sleep", "1000"], {} if how == "bare" else os.environ)
        os._exit(0)
    os.wait()
    pid = int(os.read(report, 16))
    os.close(report)
    os.close(answer)
    return pid


class Toy:
    def __init__(self, launch: TrainerLaunch) -> None:
        self.launch = launch
        self.folder = Path(launch.rank_dir)
        self.options = {key.removeprefix("toy."): value for key, value in launch.titan.overrides.items()}
        self.stop = threading.Event()
        self.unwritten = b""
        self.writer = launch.writer
        self.last_step = sys.maxsize
        """The step after which a toy that keeps its steps ends."""
        self.progress = Progress(
            run=launch.run,
            group=launch.group,
            generation=launch.generation,
            rank=launch.rank,
            pid=os.getpid(),
            sequence=0,
            phase="starting",
        )

    def say(self, **changes: Any) -> None:
        self.progress = replace(self.progress, sequence=self.progress.sequence + 1, **changes)
        temporary = self.folder / "progress.tmp"
        with contextlib.suppress(OSError):  # a full disk stops no real trainer either
            temporary.write_bytes(encode(self.progress))
            temporary.replace(self.folder / "progress.json")

    def serve_commands(self) -> None:
        listener = sockets.listen(self.folder / "command.sock")

        def serve() -> None:
            while True:
                client, _ = listener.accept()
                with client, client.makefile("rwb") as file, (self.folder / "commands.jsonl").open("ab") as log:
                    for line in file:
                        log.write(line)
                        log.flush()
                        asked = json.loads(line)
                        if asked["do"] == "writer":
                            self.writer = asked["writer"]
                        elif asked["do"] == "drain" and self.options.get("keeps") and asked.get("at_step"):
                            self.last_step = asked["at_step"]
                        elif asked["do"] == "drain":
                            self.stop.set()
                        file.write(b'{"ok":true}\n')
                        file.flush()

        threading.Thread(target=serve, daemon=True).start()

    def announce(self, replica_id: str) -> None:
        host, _, port = self.launch.lighthouse.rpartition(":")
        while True:
            try:
                with socket.create_connection((host, int(port))) as gate:
                    gate.sendall(f"BUILT {json.dumps({'replica_id': replica_id})}\n".encode())
                    if gate.recv(64) == b"OK\n":
                        return
            except OSError:
                pass
            time.sleep(0.05)

    def run_step(self, step_s: float) -> int:
        """Returns the step of the whole run: all toys of a run count by one clock, as if they healed each other."""
        clock = Path(self.launch.run_dir) / "toy-clock"
        try:
            clock.touch(exist_ok=False)
        except FileExistsError:
            pass
        except OSError:  # a test without a run's folder: count for ourselves
            return self.progress.step + 1
        return max(self.progress.step + 1, int((time.time() - clock.stat().st_mtime) / step_s) + 1)

    def note_step(self, start: float, step: int, committed: bool = True, **about: object) -> None:
        """Writes a line as a real trainer's ledger does."""
        line = {"event": "step", "start": start, "t": time.time(), "group": self.launch.group, "step": step}
        line |= {"committed": committed, **about}
        self.unwritten += json.dumps(line).encode() + b"\n"
        with contextlib.suppress(OSError), (self.folder / "steps.jsonl").open("ab", buffering=0) as file:
            while self.unwritten:  # as a trainer's ledger: on an almost full disk only a part of a line is taken
                self.unwritten = self.unwritten[file.write(self.unwritten) or 0 :]

    def idle(self) -> int:
        if self.options.get("child"):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            (self.folder / "child").write_text(str(child.pid))
        if self.options.get("leaves"):
            (self.folder / "left.json").write_text(
                json.dumps({how: leave(how) for how in ("marked", "forked", "bare")})
            )
        step_s = self.options.get("step_s", 0.05)
        start = time.time()
        while not self.stop.wait(step_s):
            self.bugs()
            if self.progress.step == self.options.get("stop_at"):
                continue
            step = self.progress.step + 1 if "raise_at" in self.options else self.run_step(step_s)
            self.note_step(start, step)
            start = time.time()
            commits, saved = self.progress.commits + 1, self.saved(step)
            self.say(phase="step", step=step, commits=commits, stepped_unix_s=start, checkpoint=saved)
            if self.progress.step == self.options.get("fail_at") and self.launch.rank == 0:
                print("the toy fails as it was asked to", flush=True)
                (self.folder / "error.json").write_text(json.dumps({"message": {"message": "ToyError: asked to"}}))
                return int(self.options.get("exit_code", 3))
        self.say(phase="finished")
        return 0

    def saved(self, step: int) -> CheckpointMark | None:
        """Returns the newest checkpoint to report."""
        if not Path(self.options.get("saves", "none")).exists():
            return self.progress.checkpoint
        due = step - step % self.launch.titan.checkpoint_interval_steps
        return CheckpointMark(step=due, path="nowhere", group=self.launch.group, generation=self.launch.generation)

    def save(self, step: int) -> None:
        """Writes a complete checkpoint, which holds the step alone."""
        mark = CheckpointMark(step=step, path="", group=self.launch.group, generation=self.launch.generation)
        folder = checkpoints.folder_of(self.launch.run_dir) / checkpoints.name_of(mark)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "marker").write_bytes(encode(replace(mark, path=str(folder))))
            (folder / "marker").rename(folder / checkpoints.MARKER)
            self.say(checkpoint=replace(mark, path=str(folder)))

    def bugs(self) -> None:
        """Causes the failures that the options ask for at this step."""
        if self.progress.step == self.options.get("raise_at"):
            raise ToyError(f"a bug at step {self.progress.step}, object at {hex(id(self))}, pid {os.getpid()}")
        if self.progress.step >= self.options.get("segfault_at", sys.maxsize):
            faulthandler.enable()
            faulthandler._sigsegv()  # type: ignore[attr-defined]
        if "hog" in self.options and Path(self.options["hog"]).exists():
            taken = [bytearray(b"x" * (1 << 20)) for _ in range(1024)]
            print(f"no one minds {len(taken)} MiB", flush=True)

    def stepped(
        self,
        start: float,
        step: int,
        committed: bool,
        participants: int,
        quorum_id: int,
        took: dict[str, float] | None = None,
        **about: object,
    ) -> None:
        """Writes down and reports an attempt in a real quorum. `took`: step_s and compute_s, if they are known."""
        self.note_step(start, step, committed, participants=participants, quorum_id=quorum_id, **about)
        counted = {
            "commits": self.progress.commits + committed,
            "failed_commits": self.progress.failed_commits + (not committed),
        }
        cause = "productive" if committed else "failed_step"  # as the line that was written says
        seconds = {**self.progress.seconds, cause: self.progress.seconds.get(cause, 0.0) + time.time() - start}
        about = {"participants": participants, "quorum_id": quorum_id, "seconds": seconds, **counted, **(took or {})}
        self.say(phase="step", step=step, **about)

    def quorum(self) -> int:
        from titan_actor.lighthouse import native

        torchft, launch = native(), self.launch
        replica_id = f"toy_{launch.group}:{uuid.uuid4()}"
        limit = timedelta(milliseconds=launch.torchft.quorum_timeout_ms)
        manager = torchft.ManagerServer(
            replica_id=replica_id,
            lighthouse_addr=f"http://{launch.lighthouse}",
            hostname="127.0.0.1",
            bind="127.0.0.1:0",
            store_addr="",
            world_size=1,
            heartbeat_interval=timedelta(milliseconds=100),
            connect_timeout=timedelta(seconds=10),
            quorum_retries=launch.torchft.quorum_retries,
        )
        client = torchft.ManagerClient(manager.address(), timedelta(seconds=10))
        self.say(phase="built", replica_id=replica_id)
        self.announce(replica_id)
        keeps = bool(self.options.get("keeps"))
        from_disk = keeps and launch.resume == "disk" and launch.checkpoint is not None
        step, start = launch.checkpoint.step if from_disk and launch.checkpoint else 0, time.time()
        while not self.stop.is_set() and step < self.last_step:
            try:
                answer = torchft_names.ask_for_quorum(client, step, commit_failures=0, timeout=limit)
            except (RuntimeError, TimeoutError) as error:
                print(f"no quorum: {error}", flush=True)
                continue
            if not self.progress.commits and launch.resume == "peers" and not answer.max_step:
                self.say(phase="failed", error="no peers to heal from")
                return PEERS_GONE
            # a group that is behind takes the newest state from the others: here that is the step alone
            step = answer.max_step + 1
            self.stepped(
                start,
                step,
                committed=True,
                participants=answer.replica_world_size,
                participating_rank=answer.replica_rank,
                quorum_id=answer.quorum_id,
                healed=answer.heal,
            )
            if keeps and self.writer and step % launch.titan.checkpoint_interval_steps == 0:
                self.save(step)
            start = time.time()
            time.sleep(self.options.get("step_s", 0.05))
        if keeps and self.writer:
            self.save(step)
        manager.shutdown()
        self.say(phase="finished")
        return 0

    def torchft(self) -> int:
        import torch
        from torch.distributed import TCPStore
        from torchft import Manager, ProcessGroupGloo

        torch.set_num_threads(1)
        launch = self.launch
        if launch.node_address != "127.0.0.1":
            # a namespace that stands for a machine, but has this one's name
            from titan_actor import address

            address.use(launch.node_address)
            torchft_names.listen_at_node()
            torchft_names.heal_at_node()
        store = TCPStore(launch.node_address, launch.master_port, is_master=True, wait_for_workers=False)
        value = torch.zeros(8)
        healed: list[bool] = []

        def load(state: dict[str, Any]) -> None:
            value.copy_(state["value"])
            healed.append(True)

        manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(milliseconds=launch.torchft.process_group_timeout_ms)),
            load_state_dict=load,
            state_dict=lambda: {"value": value.clone()},
            min_replica_size=launch.min_groups,
            use_async_quorum=False,
            timeout=timedelta(milliseconds=launch.torchft.process_group_timeout_ms),
            quorum_timeout=timedelta(milliseconds=launch.torchft.quorum_timeout_ms),
            rank=0,
            world_size=1,
            store_addr=launch.node_address,
            store_port=store.port,
            lighthouse_addr=f"http://{launch.lighthouse}",
            replica_id=f"toy_{launch.group}",
            hostname=launch.node_address,
            quorum_retries=launch.torchft.quorum_retries,
        )
        replica_id = torchft_names.replica_id(manager) + self.options.get("mistyped", "")
        self.say(phase="starting", replica_id=replica_id)
        time.sleep(self.options.get("build_s", 0.0))
        self.say(phase="built")
        self.announce(replica_id)
        start = time.time()
        while not self.stop.is_set():
            first = self.progress.commits == 0
            if first:
                self.say(phase="quorum")
            manager.start_quorum()
            if first:
                self.say(phase="step")
            gradient = torch.ones(8)
            manager.allreduce(gradient).wait()
            committed = manager.should_commit()
            if committed:
                value.add_(gradient)
            self.stepped(
                start,
                manager.current_step(),
                committed,
                participants=manager.num_participants(),
                participating_rank=manager.participating_rank(),
                quorum_id=torchft_names.quorum_id(manager),
                healed=bool(healed),
            )
            healed.clear()
            start = time.time()
            time.sleep(self.options.get("step_s", 0.02))
            while Path(self.options.get("pause", "none")).exists() and self.launch.group == 0:
                time.sleep(0.1)  # as an evaluation does
        manager.shutdown(wait=False)
        self.say(phase="finished")
        return 0


def main(arguments: list[str]) -> int:
    launch = decode(Path(arguments[0]).read_bytes(), TrainerLaunch)
    toy = Toy(launch)
    if toy.options.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    toy.say(phase="starting")
    if "needs" in toy.options and not Path(toy.options["needs"]).exists():
        (toy.folder / "error.json").write_text(json.dumps({"message": {"message": "ToyError: something is missing"}}))
        return 3
    match toy.options.get("mode", "idle"):
        case "exit":
            print("gone at once", flush=True)
            return int(toy.options.get("exit_code", 0))
        case "torchft":
            toy.serve_commands()
            return toy.torchft()
        case "quorum":
            toy.serve_commands()
            return toy.quorum()
        case "model":
            from fault_injection.doubles import toy_model

            toy.serve_commands()
            return toy_model.train(toy)
        case _:
            toy.serve_commands()
            toy.say(phase="built")
            try:
                return toy.idle()
            except ToyError as error:
                write_error_file(toy.folder, error, traceback.format_exc())
                return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
