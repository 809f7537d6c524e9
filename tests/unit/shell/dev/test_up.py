"""`up` as a control-plane job: it waits for the one before it, and announces once that its time limit is near."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell import signals
from supervisor.shell.dev import up, up_lock, up_parts
from supervisor.shell.dev.home import system_folder
from supervisor.shell.dev.up_lock import alone
from supervisor.shell.dev.up_parts import Up
from supervisor.shell.engines.local import PoolNode
from supervisor.shell.processes import Process
from supervisor.shell.signals import Notice
from supervisor.wire import address as wire_address
from supervisor.wire.records import LeaderRecord
from supervisor.wire.security import Security, SecurityError

AS_A_JOB = up.Options(etcd="e:1", name="service-n1")
HERE = up.Options(etcd="127.0.0.1:1")


class Looked(Up):
    """Counts the looks, acts at each, and ends with Ctrl-C."""

    def __init__(self, answer: Callable[[], str] | None, *at_look: Callable[[], None]) -> None:
        super().__init__(home=Path(), address="", pool=False, notice=Notice(answer))
        self.at_look = list(at_look)

    def mend(self) -> list[str]:
        if not self.at_look:
            raise KeyboardInterrupt
        self.at_look.pop(0)()
        return []


def notice() -> None:
    # to this thread: by os.kill another may take it, and some looks may pass before it arrives
    signal.raise_signal(signal.SIGUSR1)


def idle() -> None:
    pass


def watch(looked: Looked, say: Callable[[str], None]) -> None:
    with signals.notices(looked.notice):
        up.watch_over(looked, say)


@pytest.fixture(autouse=True)
def _hears() -> Iterator[None]:
    """Unblocks the signal: an import of `agents.cli` blocks it, for the shim."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "LOOK_S", 0.01)
    monkeypatch.setattr(signals, "REFUSED_PAUSE_S", 0.0)
    monkeypatch.setattr(up_lock, "WAIT_FOR_PREDECESSOR_S", 0.01)


def test_a_notice_is_answered_once_and_again_only_while_slurm_is_away() -> None:
    said: list[str] = []
    answers: list[str | Exception] = [Retryable("slurm is away", after_s=0.0), "job 7 follows"]

    def answer() -> str:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    watch(Looked(answer, idle, notice, idle, idle, notice, idle, idle), said.append)
    assert said == ["slurm is away", "job 7 follows"]


def test_a_refusal_is_said_once_and_tried_again_until_it_is_taken() -> None:
    said: list[str] = []
    answers: list[Exception] = [Fatal("slurm refuses"), Fatal("slurm refuses"), Fatal("another reason")]

    def answer() -> str:
        if answers:
            raise answers.pop(0)
        return "job 7 follows"

    watch(Looked(answer, notice, idle, idle, idle, idle, idle), said.append)
    assert said == ["slurm refuses", "another reason", "job 7 follows"]


def test_a_notice_is_answered_while_it_waits_for_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait may last until its own end."""
    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        if "waiting" in sentence:
            notice()
        else:
            raise Fatal("that is enough")

    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    folder = system_folder(tmp_path)
    try:
        with (
            alone(Up(home=folder, address="", name="service-n1", pool=False), pytest.fail),
            pytest.raises(Fatal, match="that is enough"),
            up.up(tmp_path, [], AS_A_JOB, say=say, on_notice=lambda: "job 7 follows"),
        ):
            pytest.fail("it is not alone")
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert said[1:] == ["job 7 follows"]


def test_nothing_is_answered_without_a_notice() -> None:
    watch(Looked(lambda: "asked without a notice", idle, idle, idle), pytest.fail)


def control_job(folder: Path, name: str = "service-n1") -> Up:
    return Up(home=folder / "home", address="", name=name, pool=False, node_folder=folder / "node")


def test_a_control_job_waits_for_the_one_before_it_on_its_host(tmp_path: Path) -> None:
    said: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with alone(control_job(tmp_path), said.append):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=second)
    with alone(control_job(tmp_path), said.append):
        thread.start()
        eventually(lambda: said, 10, "it says that it waits")
        assert "carries service-n1 here" in said[0]
        with alone(control_job(tmp_path, "service-n2"), pytest.fail):
            assert not inside.is_set()
    eventually(inside.is_set, 10, "it goes on when the first has ended")
    leave.set()
    thread.join()


def test_two_pools_in_one_home_are_refused(tmp_path: Path) -> None:
    pool = replace(control_job(tmp_path), pool=True)
    with (
        alone(pool, pytest.fail),
        pytest.raises(Fatal, match="another `supervisor up`"),
        alone(pool, pytest.fail),
    ):
        pass


def test_a_control_job_leaves_what_is_another_ups_alone(tmp_path: Path) -> None:
    job = control_job(tmp_path)
    job.home.mkdir()
    (job.home / "up.json").write_text("{}")
    assert job.stop() == []
    assert (job.home / "up.json").exists()
    assert job.supervisor_log != control_job(tmp_path, "service-n2").supervisor_log
    assert job.host_log == tmp_path / "node" / "nodes" / "service-n1" / "shim.log"


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of all processes that would have been started."""
    found: list[list[str]] = []

    def spawn(arguments: list[str], log: Path, mark: str) -> Process:
        found.append(arguments)
        return Process(41, 0)

    monkeypatch.setattr(up_parts, "spawned", spawn)
    return found


def given(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1] if option in arguments else ""


@pytest.mark.parametrize(("pool", "listens"), [(True, "127.0.0.1"), (False, "127.0.0.2")])
def test_the_page_is_named_once_its_supervisor_leads(
    tmp_path: Path, spawned: list[list[str]], pool: bool, listens: str
) -> None:
    started = Up(home=tmp_path / ".supervisor", address="127.0.0.2", pool=pool, endpoint="127.0.0.1:1")
    started.plan("127.0.0.1:1")
    started.parts[0].begin()
    here = LeaderRecord(host=socket.gethostname(), pid=41, home="", metrics_port=8000, page="http://here:8000/")
    started.leads(replace(here, pid=42))
    assert started.page == "", "another one leads"
    started.leads(here)
    assert started.page == here.page
    assert [given(arguments, "--metrics-address") for arguments in spawned] == [listens]


def started_at(tmp_path: Path, nodes: list[PoolNode], address: str, security: Security | None = None) -> str:
    """The address that `up` found for itself."""
    options = up.Options(etcd="127.0.0.1:1", address=address, security=security or Security())
    with up.up(tmp_path, nodes, options, say=pytest.fail) as started:
        return started.address


def test_the_page_of_a_control_job_is_where_the_others_reach_its_service_host(
    tmp_path: Path, spawned: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_address, "towards", {"127.0.0.1:1": "127.0.0.2"}.__getitem__)
    monkeypatch.setattr(up, "_wait_ready", lambda *_: None)
    assert started_at(tmp_path, [], "auto") == "127.0.0.2"
    supervisor, host = spawned
    assert (given(supervisor, "--metrics-address"), given(supervisor, "--metrics-port")) == ("127.0.0.2", "")
    assert given(host, "--address") == "127.0.0.2"
    spawned.clear()
    started_at(tmp_path, [PoolNode(name="n1")], "auto")
    supervisor, host = spawned
    assert (given(supervisor, "--metrics-address"), given(host, "--address")) == ("127.0.0.1", "127.0.0.2")


def test_an_address_that_cannot_be_is_one_sentence_before_anything_starts(
    tmp_path: Path, spawned: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SecurityError, match=r"what this host listens on at 10\.9\.9\.9 is off loopback"):
        started_at(tmp_path, [], "10.9.9.9")
    with pytest.raises(Fatal, match=r"cannot listen on 240\.9\.9\.9: .*; give an --address of this machine"):
        started_at(tmp_path, [], "240.9.9.9", Security(insecure=True))

    def no_way(endpoint: str) -> str:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(wire_address, "towards", no_way)
    with pytest.raises(Fatal, match=r"--address auto: .* 127\.0\.0\.1:1 is reached \(Network is unreachable\)"):
        started_at(tmp_path, [], "auto")
    assert spawned == []


@pytest.fixture
def training(tmp_path: Path, spawned: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A home in which an `up` that was killed has left its parts; counts how often each way to end them is called."""
    ended = {"stop": 0, "leave": 0}

    def look(self: Up) -> list[str]:
        self.found = ["etcd", "the supervisor", "node n1"]
        return self.found

    def count(name: str) -> Callable[[Up], list[str]]:
        def ends(self: Up) -> list[str]:
            ended[name] += 1
            return []

        return ends

    monkeypatch.setattr(Up, "look", look)
    for name in ended:
        monkeypatch.setattr(Up, name, count(name))
    monkeypatch.setattr(up, "_wait_ready", lambda *_: None)
    return ended


@pytest.mark.parametrize(
    ("raised", "ended"),
    [
        (KeyboardInterrupt(), {"stop": 1, "leave": 0}),
        (ValueError("a bug"), {"stop": 0, "leave": 1}),
        (BrokenPipeError(), {"stop": 0, "leave": 1}),
    ],
    ids=repr,
)
def test_only_a_persons_wish_ends_what_trained_before(
    tmp_path: Path, training: dict[str, int], raised: BaseException, ended: dict[str, int]
) -> None:
    with (
        pytest.raises(type(raised)),
        up.up(tmp_path, [PoolNode(name="n1")], HERE, say=pytest.fail),
    ):
        raise raised
    assert training == ended


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"etcd": "127.0.0.1:2"}, "etcd 127.0.0.1:1"),
        ({"etcd": ""}, "etcd 127.0.0.1:1"),
        ({"address": "127.0.0.2"}, "address 127.0.0.1"),
        ({"name": "other"}, "name host"),
    ],
)
def test_half_a_system_is_not_adopted(
    tmp_path: Path, training: dict[str, int], spawned: list[list[str]], given: dict[str, str], refusal: str
) -> None:
    with up.up(tmp_path, [PoolNode(name="n1")], HERE, say=pytest.fail):
        spawned.clear()
    with (
        pytest.raises(Fatal, match=f"were started with {refusal}: end them first with `supervisor down`"),
        up.up(tmp_path, [PoolNode(name="n1")], replace(HERE, **given), say=pytest.fail),
    ):
        pytest.fail("it began")
    assert spawned == []
    assert training == {"stop": 1, "leave": 1}, "the second has ended nothing of the first"
