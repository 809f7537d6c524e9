"""A scheduler's effects on a node: notice, TERM to every process, and a start with nearly no environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agents.agent.shim_client import ShimClient, ShimLost, Watched
from agents.shim import process
from agents.shim.main import LEAVING
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.nodes import Node, Nodes, desire, kill, observed, rank, registration, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.shell.etcd import connect
from supervisor.wire import sockets
from supervisor.wire.address import towards
from tests.helpers import etcd

FIRST = "toy.0.1.0"
REPOSITORY = str(Path(__file__).parents[3])
USR1 = 1 << (signal.SIGUSR1 - 1)


def leaving(node: Node) -> list[str]:
    return [line["why"] for line in node.history() if line["event"] == "leaving"]


def mask(pid: int, which: str) -> int:
    """SigBlk, SigIgn or SigCgt of a process; 0 when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{which}:"):
                return int(line.split()[1], 16)
    return 0


# --- notice ---


def test_a_notice_is_reported_at_once_stays_over_agents_and_does_nothing_else(nodes: Nodes, store: Store) -> None:
    node = nodes.cold("n0", "--report-s=600")
    desire(store, "n0", trainer())
    pid = running(store, node, 1)
    assert observed(store, "n0").leaving == ""
    node.shim.send_signal(signal.SIGUSR1)
    # reports come every ten minutes: this one is sent because of the notice
    eventually(lambda: observed(store, "n0").leaving == LEAVING, 10)
    agent = registration(store).agent_pid
    kill(agent)
    eventually(lambda: (r := registration(store)) and r.agent_pid != agent, 20)
    assert observed(store, "n0").leaving == LEAVING, "its first report, which is written before it registers, has it"
    node.shim.send_signal(signal.SIGUSR1)
    desire(store, "n0", trainer(generation=2))
    assert running(store, node, 2) != pid, "and it goes on obeying"
    assert leaving(node) == [LEAVING]
    told = [line["why"] for line in node.history() if line["event"] == "signalled"]
    assert told == ["generation 2 replaces it"]
    assert node.shim.poll() is None


@contextlib.contextmanager
def by_a_scheduler(nodes: Nodes, store: Store, before: Sequence[str], *options: str) -> Iterator[Node]:
    """A node as a batch script starts it: `supervisor-agent run`, exec'ed by `before`."""
    node = Node.__new__(Node)
    node.name, node.folder, node.output = "n0", nodes.home / "nodes" / "n0", nodes.home / "n0.out"
    arguments = [f"--home={nodes.home}", f"--etcd={nodes.etcd}", "--node=n0", "--cold", "--lease-s=2", *options]
    environment = {"PYTHONPATH": REPOSITORY, "SUPERVISOR_PROGRAMS": json.dumps(TOYS)}
    with node.output.open("ab") as output:
        node.shim = subprocess.Popen(
            [*before, sys.executable, "-m", "agents.cli", "run", *arguments],
            stdout=output, stderr=output, cwd="/", env=environment,
        )  # fmt: skip
    try:
        yield node
    finally:
        node.end()


@pytest.mark.parametrize(
    ("before", "from_the_first"),
    [
        ([], False),
        (["env", "--block-signal=USR1"], True),
        (["sh", "-c", 'trap "" USR1; exec "$@"', "sh"], False),
    ],
    ids=["plain", "blocked", "ignored"],
)
def test_a_notice_never_kills_the_shim_and_is_not_lost(
    nodes: Nodes, store: Store, before: list[str], from_the_first: bool
) -> None:
    with by_a_scheduler(nodes, store, before) as node:
        pid = node.shim.pid
        eventually(lambda: mask(pid, "SigBlk") & USR1, 10, "it is held, long before the shim is there")
        assert "agents.shim" not in Path(f"/proc/{pid}/cmdline").read_text()
        node.shim.send_signal(signal.SIGUSR1)
        try:
            eventually(lambda: leaving(node), 20)
        except AssertionError as error:
            masks = {which: f"{mask(pid, which):x}" for which in ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")}
            raise AssertionError(f"{error}; {masks}; {node.history()}; {node.output.read_text()}") from None
        desire(store, "n0", trainer())
        rank_pid = running(store, node, 1)
        assert observed(store, "n0").leaving == LEAVING
        # a trainer's stacks come on SIGUSR1, by a handler of its own: it is not blocked, and ends nothing without one
        for child in (node.pid("agent"), rank_pid):
            assert not mask(child, "SigBlk") & USR1
            assert mask(child, "SigIgn") & USR1, "a step of srun gets the notice in all of its processes"
        assert leaving(node) == [LEAVING]


def test_after_a_notice_its_end_is_as_ever_whatever_signals_it_was_started_without(nodes: Nodes, store: Store) -> None:
    """A preempted job's end: the notice stops nothing, SIGTERM does."""
    with by_a_scheduler(nodes, store, ["env", "--block-signal=CHLD", "--block-signal=TERM"]) as node:
        desire(store, "n0", trainer(world_size=2))
        running(store, node, 1)
        node.shim.send_signal(signal.SIGUSR1)
        eventually(lambda: observed(store, "n0").leaving == LEAVING, 20)
        kill(node.pid(FIRST))
        eventually(lambda: rank(store, "n0", 1).state == "exited", 10, "its end is seen")
        node.shim.send_signal(signal.SIGTERM)
        assert node.shim.wait(15) == 0
        assert node.left() == []
        assert registration(store) is None


def test_messages_that_a_client_does_not_know_are_passed_over(tmp_path: Path) -> None:
    heard: list[object] = []
    lines = [
        {"of_tomorrow": 1},
        {"warm": "off"},
        {"trips": {"toy.0.1": 2.0}},
        {"leaving": "it was said"},
        {"stopping": True},
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        writer.close()

    async def talk() -> None:
        listener = sockets.listen(tmp_path / "shim.sock")
        async with await asyncio.start_unix_server(serve, sock=listener):
            client = ShimClient(None, None, tmp_path / "shim.sock")
            with pytest.raises(ShimLost):
                await client.watch(Watched(*[heard.append] * 5, stopping=lambda: heard.append("stopping")))

    asyncio.run(talk())
    assert heard == ["off", {"toy.0.1": 2.0}, "it was said", "stopping"]


# --- the end of a job ---


@pytest.mark.parametrize("obeys", [True, False])
def test_a_cancelled_job_leaves_nobody_within_its_graces(nodes: Nodes, store: Store, obeys: bool) -> None:
    """Slurm sends TERM to every process of the job at once, and KILL after KillWait."""
    grace_s = 1.0
    node = nodes.cold("n0", f"--grace-s={grace_s:g}")
    desire(store, "n0", trainer(toy_ignore_term=not obeys))
    running(store, node, 1)
    for stat in [*node.left(), process.stat_of(node.shim.pid)]:
        process.send_signal(stat.pid, stat.start_ticks, signal.SIGTERM)
    # docs/NODES.md: twice the grace and four seconds, which has to stay below KillWait
    assert node.shim.wait(2 * grace_s + 4.0 + 5.0) == 0
    assert node.left() == []
    # the agent got that TERM as well: it stays to report how it ended, and gives its lease back
    assert rank(store, "n0", 1).exit.signal == (15 if obeys else 9)
    assert registration(store) is None


# --- with nearly nothing ---


@pytest.mark.parametrize("gone", [False, True], ids=["root", "deleted"])
def test_a_node_needs_no_home_no_locale_no_stdin_and_no_folder_to_be_in(
    nodes: Nodes, store: Store, tmp_path: Path, gone: bool
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    script = f'cd {folder} && rmdir {folder} || exit 9; exec "$@"' if gone else 'exec "$@"'
    before = ["sh", "-c", f"umask 077; exec <&- >&- 2>&-; {script}", "sh"]
    with by_a_scheduler(nodes, store, before, "--host=n0", "--address=auto") as node:
        desire(store, "n0", trainer(world_size=2))
        running(store, node, 1)
        found = registration(store)
        assert (found.host, found.address) == ("n0", "127.0.0.1")
        assert os.getsid(node.pid(FIRST)) == node.pid(FIRST)
        given = Path(f"/proc/{node.pid(FIRST)}/environ").read_bytes()
        assert not [name for name in (b"HOME=", b"PATH=", b"TMPDIR=", b"LANG=") if b"\0" + name in b"\0" + given]
        shim = process.stat_of(node.shim.pid)
        assert shim.session == os.getsid(0), "nothing here led a session"
        kill(node.pid("agent"))
        desire(store, "n0", trainer(generation=2, world_size=2))
        running(store, node, 2)
        # no file of ours got the number of one that was closed
        assert {os.readlink(f"/proc/{node.shim.pid}/fd/{number}") for number in range(3)} == {os.devnull}
        node.shim.send_signal(signal.SIGTERM)
        assert node.shim.wait(15) == 0
        assert node.left() == []


def test_a_shim_whose_output_cannot_be_written_goes_on(nodes: Nodes, store: Store) -> None:
    before = ["sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh"]
    with by_a_scheduler(nodes, store, before) as node:
        desire(store, "n0", trainer())
        pid = running(store, node, 1)
        kill(node.pid("agent"))  # which the shim reports, or tries to
        desire(store, "n0", trainer(generation=2))
        assert running(store, node, 2) != pid


# --- addresses ---


def run_cli(*arguments: str, patch: str = "") -> subprocess.CompletedProcess[str]:
    program = f"import supervisor.wire.address as a, sys\n{patch}\nfrom agents import cli\ncli.main()"
    return subprocess.run(
        [sys.executable, "-c", program, "run", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


def test_the_address_from_which_an_etcd_is_reached() -> None:
    assert towards("127.0.0.1:2379") == "127.0.0.1"
    assert towards("https://localhost:2379") in ("127.0.0.1", "::1")
    with pytest.raises(ValueError, match="HOST:PORT"):
        towards("nothing")


@pytest.mark.parametrize(
    ("endpoint", "patch", "code", "sentence"),
    [
        (
            "nosuch.invalid:1",
            "",
            1,
            "--address auto: cannot find the address of this machine from which nosuch.invalid:1",
        ),
        ("somewhere", "", 2, "each endpoint is HOST:PORT"),
        ("127.0.0.1:1", "a.towards = lambda _: '10.9.9.9'", 2, "at 10.9.9.9 is off loopback"),
    ],
)
def test_an_automatic_address_that_cannot_be_is_one_sentence(
    tmp_path: Path, endpoint: str, patch: str, code: int, sentence: str
) -> None:
    done = run_cli(f"--home={tmp_path}", "--node=n0", f"--etcd={endpoint}", "--address=auto", patch=patch)
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_host_is_a_name(tmp_path: Path) -> None:
    done = run_cli(f"--home={tmp_path}", "--node=n0", "--etcd=127.0.0.1:1", "--host=a b")
    assert (done.returncode, "--host 'a b'" in done.stderr) == (2, True)


# --- more nodes than one on a host ---


def test_nodes_and_systems_that_share_a_host_leave_each_other_alone(nodes: Nodes, store: Store, tmp_path: Path) -> None:
    """Names and homes that begin with each other's, and the same node name in another system."""
    with contextlib.ExitStack() as stack:
        other_etcd = stack.enter_context(etcd.running(tmp_path / "etcd2"))
        other_store = stack.enter_context(connect([other_etcd.endpoint]))
        other_home = tmp_path.with_name(tmp_path.name + "2")
        other_home.mkdir()
        others = stack.enter_context(Nodes(other_home, other_etcd.endpoint))
        first = nodes.cold("n1")
        watched = [(nodes.cold("n10"), store), (others.cold("n1"), other_store)]
        for node, its in [(first, store), *watched]:
            desire(its, node.name, trainer())
        before = [running(its, node, 1) for node, its in watched]
        running(store, first, 1)
        kill(first.shim.pid)
        first.shim.wait()
        again = nodes.cold("n1")
        # it has taken over what the dead one left, and looked for processes to kill
        eventually(lambda: (r := rank(store, "n1", 1)) and r.state == "exited", 20)
        desire(store, "n1", trainer(generation=2))
        running(store, again, 2)
        assert [node.pid(FIRST) for node, _ in watched] == before
        for node, _ in watched:
            assert [x for x in node.history() if x["event"] in ("exited", "signalled", "leftover_killed")] == []


def test_a_node_that_was_submitted_from_within_another_is_not_its_leftover(nodes: Nodes, store: Store) -> None:
    """A scheduler hands the submitter's environment on to the job."""
    marks = [f"{process.NODE_DIR}={nodes.home / 'nodes' / 'outer'}", f"{process.SHIM_PID}=1"]
    with by_a_scheduler(nodes, store, ["env", *marks]) as node:
        eventually(lambda: registration(store), 15)
        assert process.marked(str(nodes.home / "nodes" / "outer")) == []
        assert node.left() != []
