"""The checks of a machine, each made to fail by its own cause where a test can arrange it."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.agent.reporter import Callbacks, Reporter, _repeated
from agents.health.checks import hand, machine, network, run
from agents.health.checks.neighbours import PEERS, neighbours
from agents.health.checks.network import Peer
from agents.health.checks.node import AGAIN, FIRST, IDLE_S, REPEAT_FIRST_S, REPEAT_MOST_S, REPEATED, NodeChecks
from agents.health.checks.run import Check, answers
from agents.shim.settings import Settings
from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.testbed.nodes import Nodes, desire, kill, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.wire import keys
from supervisor.wire.checks import CheckResult
from supervisor.wire.records import NodeCheck, NodeObserved, Registration, TrainerObserved, decode, encode
from supervisor.wire.security import Security
from tests.system.agents.test_facts import ROOT, tmpfs
from tests.unit.shell.records import registration
from titan_actor import check_device


def one(look: Any = None, limit_s: float = 20.0, argv: tuple[str, ...] = ()) -> CheckResult:
    """The only result of a check."""
    (found,) = answers(Check("it", limit_s, look, argv))
    return found


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


# --- the runner of checks ---


def test_all_pass_on_this_machine_and_leave_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = Peer("n1", "127.0.0.1", server.getsockname()[1])
        found = [r for check in run.checks(tmp_path, 1, [here, here]) for r in answers(check)]
    outcomes = {r.name: r.outcome for r in found}
    assert outcomes == {
        **dict.fromkeys(("memory", "disk", "loopback", "peers", "matmul"), "passed"),
        "device": "skipped",
    }
    assert all(r.took_s > 0 and r.evidence for r in found)
    assert list(tmp_path.iterdir()) == []


def test_a_busy_machine_is_no_broken_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass is disturbed, but each megabyte is left alone in one of them; broken memory is slow each time."""
    asked = 0

    def timed(work: Callable[[], object]) -> float:
        nonlocal asked
        work()
        again, place = divmod(asked, machine.MEMORY_BYTES >> 20)
        asked += 1
        return 0.0001 if place % machine.MEMORY_TRIES == again else 0.02

    monkeypatch.setattr(machine, "_timed", timed)
    assert machine.memory().outcome == "passed"
    assert asked == machine.MEMORY_TRIES * (machine.MEMORY_BYTES >> 20)
    monkeypatch.setattr(machine, "_timed", lambda work: work() or 0.02)
    assert (found := machine.memory()).outcome == "failed", found
    assert found.evidence == "0.05243 GB/s copied: below 0.5 GB/s"


def test_one_that_hangs_costs_its_limit_and_is_told() -> None:
    began = time.monotonic()
    found = one(lambda: time.sleep(600), limit_s=0.5)
    assert (found.outcome, found.evidence) == ("unknown", "no answer within 0.5 s")
    assert 0.5 <= time.monotonic() - began < 20 * 0.5


def test_what_a_program_said_before_it_hung_is_kept_and_its_children_end_with_it(tmp_path: Path) -> None:
    text = (
        "import os, sys, time\nfrom supervisor.wire.checks import CheckResult, to_line\n"
        "print(to_line(CheckResult(name='device', outcome='passed', evidence='eight')), flush=True)\n"
        f"pid = os.fork()\nif pid: open({str(tmp_path / 'pid')!r}, 'w').write(str(pid))\ntime.sleep(600)"
    )
    first, second = answers(Check("device", 5.0, argv=program(text)))
    assert (first.name, first.outcome, first.evidence) == ("device", "passed", "eight")
    assert (second.outcome, second.evidence) == ("unknown", "no answer within 5 s (after device)")
    child = (tmp_path / "pid").read_text()
    eventually(lambda: _ended(child), 10)


def _ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import ctypes; ctypes.string_at(0)", "it ended with signal 11"),
        ("raise RuntimeError('CUDA error: unknown error')", "exit code 1: RuntimeError: CUDA error: unknown error"),
        ("pass", "it ended with exit code 0"),
        ("raise SystemExit('\\x1b[31mno device\\x1b[0m\\x1b]0;owned\\x07')", "exit code 1: no device"),
    ],
)
def test_one_that_ends_without_a_word_says_nothing_of_the_machine(text: str, words: str) -> None:
    found = one(argv=program(text))
    assert found.outcome == "unknown"
    assert words in found.evidence
    assert "\x1b" not in found.evidence


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "failed", "OSError: Input/output error"),
        (ImportError("no such module"), "unknown", "ImportError: no such module"),
    ],
)
def test_what_the_machine_says_is_a_failure_and_what_is_wrong_with_the_check_is_not(
    error: Exception, outcome: str, words: str
) -> None:
    def raises() -> CheckResult:
        raise error

    found = one(raises)
    assert (found.outcome, found.evidence) == (outcome, words)


# --- the disk ---


@ROOT
def test_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", machine.DISK_BYTES // 2) as folder:
        found = one(lambda: machine.disk(folder))
        assert (found.outcome, found.evidence) == ("failed", "OSError: No space left on device")
        assert list(folder.iterdir()) == []


@ROOT
def test_a_read_only_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 2 * machine.DISK_BYTES) as folder:
        assert one(lambda: machine.disk(folder)).outcome == "passed"
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert one(lambda: machine.disk(folder)).evidence == "OSError: Read-only file system"


def test_a_disk_that_gives_back_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.fsync

    def flips(handle: int) -> None:
        os.pwrite(handle, b"\xff", machine.DISK_BYTES // 2)
        read(handle)

    monkeypatch.setattr(os, "fsync", flips)
    found = one(lambda: machine.disk(tmp_path))
    assert (found.outcome, found.evidence) == (
        "failed", f"what is read from {tmp_path} differs from what was written"
    )  # fmt: skip


def test_a_disk_that_is_slow_three_times_in_a_row_and_one_that_is_slow_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock runs a thousand times as fast while the disk is slow."""
    slow: list[bool] = []

    def timed(work: Any) -> float:
        began = time.monotonic()
        work()
        return (time.monotonic() - began) + (2 * machine.DISK_BYTES / 1e6 / machine.DISK_FLOOR if slow.pop(0) else 0.0)

    monkeypatch.setattr(machine, "_timed", timed)
    slow[:] = [True] * machine.DISK_TRIES
    found = machine.disk(tmp_path)
    assert found.outcome == "failed"
    assert f"below {machine.DISK_FLOOR:g} MB/s" in found.evidence
    slow[:] = [True, False]
    assert machine.disk(tmp_path).outcome == "passed"


# --- the network ---


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def silent(node: str) -> Peer:
    """A peer whose name does not resolve: no answer comes."""
    return Peer(node, "no-such-host.invalid", 1)


def test_a_closed_port_is_an_answer_and_most_silent_is_a_failure() -> None:
    refuses = Peer("n1", "127.0.0.1", closed_port())
    assert (network.peers([refuses]).outcome, network.peers([]).outcome) == ("passed", "skipped")
    one_of_two = network.peers([refuses, silent("n2")])
    assert one_of_two.outcome == "passed"
    assert "1 of 2 other nodes answer; not n2 (no-such-host.invalid)" in one_of_two.evidence
    alone = network.peers([silent("n2")])
    assert (alone.outcome, "not known" in alone.evidence) == ("skipped", True)
    most = network.peers([refuses, silent("n2"), silent("n3")])
    assert (most.outcome, most.unit) == ("failed", "ms")


def test_a_peer_that_never_answers_costs_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full drops packets, like a host behind a broken link."""
    monkeypatch.setattr(network, "PATIENCE_S", 0.3)
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        found = network.peers([Peer(f"n{i}", *full.getsockname()) for i in range(3)])
    assert found.outcome == "failed"
    assert "0 of 3 other nodes answer; not n0 (127.0.0.1): timed out" in found.evidence


def test_the_neighbours_are_the_registered_nodes_that_follow_by_name_round_the_end() -> None:
    store = MemoryStore()
    for number in range(PEERS + 4):
        name = f"n{number:02}"
        record = {k: v for k, v in registration(name, metrics_port=9000 + number).items() if number != 5}
        for key, value in {**record, keys.health(name): b"x", keys.check(name): b"x"}.items():
            store.put(key, value)
    found = [peer.node for peer in neighbours(store, "n03")]
    assert found == ["n04", "n06", "n07", "n08", "n09", "n10", "n11", "n00"]
    assert neighbours(store, "n03")[0] == Peer("n04", "127.0.0.1", 9004)
    store.away = True
    assert neighbours(store, "n03") == []


# --- devices ---


def test_a_product_is_known_to_the_bit_and_one_wrong_bit_is_seen() -> None:
    a, b = check_device.factors(check_device.ON_CPU)
    exact = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float32)
    assert check_device.product("matmul", check_device.ON_CPU, lambda: exact).outcome == "passed"
    wrong = exact.copy()
    wrong.view(np.uint32)[17, 23] ^= 1
    tries = [exact, exact, wrong, exact, exact]
    found = check_device.product("matmul", check_device.ON_CPU, lambda: tries.pop(0))
    assert (found.outcome, "wrong (try 3 of 5)" in found.evidence) == ("failed", True)


def test_the_product_that_a_gpu_has_to_make_is_known() -> None:
    a, b = (factor.astype(np.float64) for factor in check_device.factors(check_device.ON_GPU))
    assert np.abs(a).max() * np.abs(b).max() * check_device.ON_GPU < 2**24, (
        "every order of adding is exact, in TF32 too"
    )
    exact = (a @ b).astype(np.float32)
    assert check_device.product("matmul 0", check_device.ON_GPU, lambda: exact).outcome == "passed"


def test_a_device_that_may_not_be_opened_is_anothers_and_one_that_does_not_answer_is_broken(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia1").mkdir()  # cannot be opened for writing, and not for want of rights
    count, broken = check_device.devices(tmp_path)
    assert (count, broken) == (1, [f"{tmp_path / 'nvidia1'}: Is a directory"])
    assert check_device.devices(tmp_path / "none") == (0, [])


@pytest.mark.parametrize(
    ("cuda", "there", "broken", "outcome", "words"),
    [
        (None, 8, [], "skipped", "a torch without CUDA"),
        ("12.9", 8, [], "failed", "CUDA has 7 devices; 8 ranks may be placed here"),
        (
            "12.9",
            7,
            ["/dev/nvidia7: Input/output error"],
            "failed",
            "CUDA has 7 devices; /dev/nvidia7: Input/output error",
        ),
    ],
)
def test_fewer_devices_than_ranks(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, there: int, broken: list[str], outcome: str, words: str
) -> None:
    fake = SimpleNamespace(device_count=lambda: 7, is_available=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake, version=SimpleNamespace(cuda=cuda)))
    (found,) = check_device.on_gpu(8, there, broken)
    assert (found.outcome, words in found.evidence) == (outcome, True)


def test_what_cuda_says_of_a_device_is_a_failure_and_memory_that_others_use_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OutOfMemory(RuntimeError):
        pass

    def multiply(torch: Any, number: int) -> Any:
        raise [OutOfMemory("CUDA out of memory."), RuntimeError("CUDA error: uncorrectable ECC\nsee the manual")][
            number
        ]
        yield

    fake = SimpleNamespace(device_count=lambda: 2, is_available=lambda: True)
    matmul = SimpleNamespace(matmul=SimpleNamespace())
    torch = SimpleNamespace(
        cuda=fake, version=SimpleNamespace(cuda="12.9"), OutOfMemoryError=OutOfMemory,
        backends=SimpleNamespace(cuda=matmul),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(check_device, "_one", multiply)
    said = [(found.outcome, found.evidence) for found in check_device.on_gpu(2, 2, [])]
    assert said[1:] == [
        ("unknown", "its memory is in use: CUDA out of memory."),
        ("failed", "CUDA error: uncorrectable ECC"),
    ]


# --- when the agent runs them ---


class Told:
    """Keeps the records that an agent's checks write, and controls when they run."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.settings = Settings(**{"node": "n1", "home": home, "etcd": ("127.0.0.1:1",), "host": "m1", **settings})
        self.settings.node_folder.mkdir(parents=True, exist_ok=True)
        self.records: list[NodeCheck] = []
        self.only_if_bad = False

    def checks(self, life: str = "shim-1") -> NodeChecks:
        return NodeChecks(self.settings, life, self._tell)

    def _tell(self, record: NodeCheck, only_if_bad: bool) -> None:
        self.records.append(record)
        self.only_if_bad = only_if_bad

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(record.state, record.why) for record in self.records]


def test_once_in_a_nodes_life_before_its_first_rank(tmp_path: Path) -> None:
    told = Told(tmp_path)
    checks = told.checks()
    checks.start(runs_here=False)
    assert told.said == [("pending", FIRST)]
    checks.written(told.records[0], 7, [])
    eventually(lambda: len(told.records) == 2, 30, "they end")
    assert told.said[1] == ("passed", FIRST)
    assert (told.records[1].host, told.records[1].began) == ("m1", 7)
    assert {"memory", "disk", "matmul"} <= {r.name for r in told.records[1].results}
    told.checks().start(runs_here=True)
    assert told.said.pop() == ("pending", FIRST), "etcd was not told yet"
    del told.records[2]
    checks.written(told.records[1], 8, [])
    told.checks().start(runs_here=True)
    told.checks().start(runs_here=False)
    assert len(told.records) == 2, "the next agent of this life does not"
    told.checks("shim-2").start(runs_here=False)
    assert told.said[2] == ("pending", FIRST)
    told.checks("shim-2").start(runs_here=True)
    assert len(told.records) == 4, "an agent that was killed in the midst of it left nodes waiting"


def test_not_beside_a_rank_nor_on_a_service_host(tmp_path: Path) -> None:
    told, host = Told(tmp_path / "a"), Told(tmp_path / "b", role="service")
    told.checks().start(runs_here=True)
    host.checks().start(runs_here=False)
    assert told.said == host.said == []


def test_again_once_a_rank_has_failed_and_nothing_is_to_run_there_for_a_while(tmp_path: Path) -> None:
    told = Told(tmp_path)
    checks = told.checks()
    checks.look(True, 0.0)
    checks.look(True, 100.0)
    assert told.said == [], "no rank has failed"
    checks.failed()
    checks.look(False, 101.0)
    checks.look(True, 102.0)
    checks.look(True, 102.0 + IDLE_S / 2)
    checks.look(False, 102.0 + IDLE_S)
    checks.look(True, 103.0 + IDLE_S)
    assert told.said == [], "it was started again in place"
    checks.look(True, 103.0 + 2 * IDLE_S)
    checks.look(True, 200.0)
    assert told.said == [("pending", AGAIN)], "once"


def test_what_says_nothing_says_nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISOR_PROGRAMS", '{"checks": "antigravity.no"}')
    told = Told(tmp_path)
    checks = told.checks()
    checks.start(runs_here=False)
    checks.written(told.records[0], 7, [])
    eventually(lambda: len(told.records) == 2, 30)
    assert told.records[1].state == "unknown"
    assert told.records[1].results[0].evidence == "they ended with 1, without output"


def ended(told: Told, checks: NodeChecks, state: Any) -> None:
    """Waits until the checks have run and etcd has their results."""
    checks.written(replace(told.records[-1], state=state), 9, [])


def test_what_has_not_passed_is_repeated_ever_less_often_until_it_passes(tmp_path: Path) -> None:
    told = Told(tmp_path)
    checks = told.checks()
    checks.start(runs_here=False)
    now, waited = 0.0, []
    for state in ("failed", "unknown", "failed", *["failed"] * 6, "passed"):
        ended(told, checks, state)
        began, count = now, len(told.records)
        while len(told.records) == count and now < began + 10 * REPEAT_MOST_S:
            checks.look(True, now)
            now += 1.0
        waited.append(now - began)
    assert told.said[1:] == [("pending", REPEATED)] * 9, "and not once more, since it has passed"
    assert told.only_if_bad
    assert all(2 * a <= b + 10.0 or b >= REPEAT_MOST_S for a, b in pairwise(waited[:-1]))
    assert REPEAT_FIRST_S <= waited[0] < 2 * REPEAT_FIRST_S
    assert REPEAT_MOST_S <= waited[8] < 2 * REPEAT_MOST_S


def test_it_is_not_repeated_beside_a_rank_nor_once_a_person_has_freed_the_node(tmp_path: Path) -> None:
    told = Told(tmp_path)
    checks = told.checks()
    checks.start(runs_here=False)
    ended(told, checks, "failed")
    for now in range(500):
        checks.look(False, float(now))
    assert len(told.records) == 1
    for now in range(500, 503):
        checks.look(True, float(now))
    assert told.said[1:] == [("pending", REPEATED)]
    checks.written(told.records[1], 0, [])
    for now in range(503, 5000):
        checks.look(True, float(now))
    assert len(told.records) == 2
    told.checks().start(runs_here=False)
    assert len(told.records) == 2, "nor by its next agent"


def test_the_next_agent_of_a_node_that_has_not_passed_goes_on(tmp_path: Path) -> None:
    told = Told(tmp_path)
    checks = told.checks()
    checks.start(runs_here=False)
    ended(told, checks, "failed")
    checks = told.checks()
    checks.start(runs_here=False)
    for now in range(int(2 * REPEAT_FIRST_S)):
        checks.look(True, float(now))
    assert told.said == [("pending", FIRST), ("pending", REPEATED)]


# --- records of repeated checks ---

BAD = CheckResult(name="disk", outcome="failed", evidence="full")
FINE = CheckResult(name="disk", outcome="passed", evidence="fine")
LATE = CheckResult(name="device", outcome="unknown", evidence="no answer within 120 s")


def said(state: Any, *results: CheckResult) -> NodeCheck:
    return NodeCheck(node="n1", host="m1", state=state, why=REPEATED, results=results)


def written(store: MemoryStore, record: NodeCheck) -> NodeCheck | None:
    """The check in etcd after a repeated one reported `record`; None: it was not written."""
    if not _repeated(store, record):
        return None
    item = store.get(keys.check("n1"))
    assert item is not None
    return decode(item.value, NodeCheck)


def test_what_failed_stands_until_the_repeated_checks_have_passed() -> None:
    store = MemoryStore()
    store.put(keys.check("n1"), encode(said("failed", BAD)))
    for record in (said("pending"), said("unknown", FINE, LATE), said("pending"), said("failed", BAD)):
        found = written(store, record)
        assert found is not None
        assert (found.stands, BAD in found.results) == ("failed", True)
    found = written(store, said("passed", FINE))
    assert found == said("passed", FINE)
    assert written(store, said("pending")) is None, "it has passed, by hand"


def test_who_frees_a_node_is_not_overruled() -> None:
    store = MemoryStore()
    assert written(store, said("pending")) is None
    assert written(store, said("failed", BAD)) is None
    assert store.get(keys.check("n1")) is None
    store.put(keys.check("n1"), encode(said("unknown", LATE)))
    found = written(store, said("pending"))
    assert found is not None
    assert (found.state, found.stands) == ("pending", "unknown")


def test_the_agent_is_told_what_was_written_and_what_was_not(tmp_path: Path) -> None:
    store, told = MemoryStore(), []
    (record,) = registration("n1", host="m1").values()
    reporter = Reporter(
        decode(record, Registration), tmp_path, ["e:1"], 5,
        Callbacks(checked=lambda said, revision, peers: told.append((said.state, revision > 0))),
    )  # fmt: skip
    for about in (
        (said("failed", BAD),),
        (said("pending"), True),
        (said("passed", FINE), True),
        (said("pending"), True),
    ):
        reporter.check(*about)
        reporter._write(store)
        reporter._write(store)
    assert told == [("failed", True), ("pending", True), ("passed", True), ("pending", False)]


# --- by hand ---


@pytest.fixture
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store of a system in which `n1` ran here; the checks give `results`."""
    store = MemoryStore()
    (tmp_path / "nodes" / "n1").mkdir(parents=True)
    monkeypatch.setattr(hand, "connect", lambda etcd, security: store)
    monkeypatch.setattr(hand, "closing", nullcontext)
    return store


def observed(state: Any) -> bytes:
    rank = TrainerObserved(run="demo", group=1, generation=1, rank=0, pid=7, state=state)
    return encode(NodeObserved(node="n1", sequence=1, trainers=(rank,)))


def test_a_node_on_which_a_rank_runs_is_not_checked_by_hand(
    tmp_path: Path, by_hand: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand, "_run", lambda *about: [FINE])
    for key, value in registration("n1", host="m1").items():
        by_hand.put(key, value)
    by_hand.put(keys.observed("n1"), observed("running"))
    with pytest.raises(hand.NodeInUse, match=r"node n1 runs group 1 of run demo.*supervisor drain n1 --because"):
        hand.by_hand(tmp_path, "n1", 1, ["e:1"], Security())
    assert by_hand.get(keys.check("n1")) is None
    by_hand.put(keys.observed("n1"), observed("exited"))
    assert hand.by_hand(tmp_path, "n1", 1, ["e:1"], Security())[0] == [FINE]
    by_hand.put(keys.observed("n1"), observed("running"))
    by_hand.commit({}, [keys.registration("n1")])
    assert hand.by_hand(tmp_path, "n1", 1, ["e:1"], Security())[0] == [FINE], "its agent is gone"


def test_what_could_not_be_done_by_hand_takes_back_no_failure(
    tmp_path: Path, by_hand: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand, "_run", lambda *about: [FINE, LATE])
    _, follows = hand.by_hand(tmp_path, "n1", 1, ["e:1"], Security())
    assert "proves nothing about host n1: no group is placed on node n1 until it passes" in follows
    by_hand.put(keys.check("n1"), encode(said("failed", BAD)))
    _, follows = hand.by_hand(tmp_path, "n1", 1, ["e:1"], Security())
    assert "its earlier checks failed, and that stands" in follows
    item = by_hand.get(keys.check("n1"))
    assert item is not None
    assert decode(item.value, NodeCheck) == said("failed", BAD)


def _check(store: Store) -> NodeCheck | None:
    item = store.get(keys.check("n0"))
    return decode(item.value, NodeCheck) if item is not None else None


def _done(store: Store, why: str) -> NodeCheck | None:
    found = _check(store)
    return found if found is not None and found.state != "pending" and found.why == why else None


@pytest.mark.etcd
def test_a_nodes_agent_says_so_before_it_registers_and_checks_again_after_a_failure(nodes: Nodes, store: Store) -> None:
    node = nodes.cold("n0")
    first = eventually(lambda: _done(store, FIRST), 60, "the first checks end")
    assert (first.state, first.host) == ("passed", "n0")
    assert [r.name for r in first.results] == ["memory", "disk", "loopback", "peers", "device"]
    registered = eventually(lambda: store.get(keys.registration("n0")), 30, "it registers")
    assert 0 < first.began < registered.create_revision, "whoever sees the node sees that it is being checked"
    desire(store, "n0", trainer())
    pid = running(store, node, 1)
    (node.folder.parent.parent / "broken-n0").write_text("it fell off the bus")
    kill(pid)
    desire(store, "n0")
    again = eventually(lambda: _done(store, AGAIN), 60, "it is checked again")
    assert (again.state, again.began > registered.create_revision) == ("failed", True)
    assert [r.evidence for r in again.results if r.outcome == "failed"] == ["it fell off the bus"]


def test_gpus_that_are_hidden_on_purpose_are_not_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(check_device, "DEVICES", tmp_path)
    assert check_device.seen() == (1, [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert check_device.seen() == (0, [])
