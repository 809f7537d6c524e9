"""Facts about the machine, each with its own cause where a test can arrange it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agents.health import oom_kills
from agents.health.facts import LOOK_S, Facts, host
from agents.health.facts.files import (
    BYTES,
    DEADLINE_S,
    EVERY_S,
    EVERY_SHARED_S,
    ROOM_BYTES,
    Probe,
    SharedFolders,
    lists,
    takes_nothing,
    writes,
)
from fault_injection.faults.site import no_memory_cgroup
from fault_injection.testbed import netns
from fault_injection.testbed.memory_cgroup import memory_cgroup
from fault_injection.testbed.nodes import Nodes
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import HangSpec
from supervisor.ports.store import Store
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.wire import keys
from supervisor.wire.kernel_clock import kernel_clock
from supervisor.wire.records import Fact, Health, decode
from tests.helpers.file_system import file_system
from tests.helpers.file_system import missing as no_fuse

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "probe", str(folder)], check=True)
    try:
        yield folder
    finally:
        # a process that was killed a moment ago may still have a file open there
        eventually(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, 10)


def once(probe: Probe, clock: Clock) -> list[Fact]:
    """The facts that one more use of the folder finds."""
    clock.now += EVERY_S
    probe.read()
    eventually(lambda: probe._thread is None or not probe._thread.is_alive(), 10)
    return list(probe.read())


@ROOT
def test_a_disk_that_fills_and_is_emptied_again(tmp_path: Path) -> None:
    clock = Clock()
    with tmpfs(tmp_path / "disk", 4 * ROOM_BYTES) as folder:
        probe = Probe(folder, writes, EVERY_S, clock)
        assert once(probe, clock) == []
        (folder / "filler").write_bytes(b"x" * os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize)
        (found,) = once(probe, clock)
        assert (found.kind, found.subject) == ("disk_full", str(folder))
        assert "No space left on device" in found.evidence
        with (folder / "filler").open("r+b") as filler:
            filler.truncate(filler.seek(0, os.SEEK_END) - 2 * BYTES)
        (found,) = once(probe, clock)
        assert found.kind == "disk_full", "a block that fits says nothing"
        (folder / "filler").unlink()
        assert once(probe, clock) == []
        assert list(folder.iterdir()) == [], "nothing of ours is left"


@ROOT
def test_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    clock = Clock()
    with tmpfs(tmp_path / "disk", 4 * ROOM_BYTES) as folder:
        probe = Probe(folder, writes, EVERY_S, clock)
        assert once(probe, clock) == []
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert [fact.kind for fact in once(probe, clock)] == ["disk_read_only"]


@ROOT
def test_what_can_be_told_of_a_disk_at_once_is_what_a_probe_finds(tmp_path: Path) -> None:
    """Both use the same words, so that the fact is reported once."""
    clock = Clock()
    with tmpfs(tmp_path / "disk", 4 * ROOM_BYTES) as folder:
        probe = Probe(folder, writes, EVERY_S, clock)
        assert takes_nothing(folder) == ""
        filler = folder / "filler"
        filler.write_bytes(b"x" * os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize)
        assert takes_nothing(folder) == once(probe, clock)[0].evidence == f"{folder}: No space left on device"
        filler.unlink()
        assert takes_nothing(folder) == ""
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert takes_nothing(folder) == once(probe, clock)[0].evidence == f"{folder}: Read-only file system"
    assert takes_nothing(folder / "gone") == ""


def test_a_file_system_that_hangs_is_told_after_the_deadline_and_holds_no_one(tmp_path: Path) -> None:
    clock, free, uses = Clock(), threading.Event(), []

    def hangs(folder: Path) -> None:
        uses.append(folder)
        free.wait(30)

    probe = Probe(tmp_path, hangs, EVERY_S, clock)
    try:
        assert probe.read() == ()
        clock.now += DEADLINE_S
        assert probe.read() == ()
        clock.now += 1.0
        (found,) = probe.read()
        assert (found.kind, found.evidence) == ("file_system_stalled", f"{tmp_path} has not answered for over 10 s")
        clock.now += 9.0
        assert probe.read() == (found,), "no news at every look"
        clock.now += 1000.0
        assert probe.read()[0].evidence == f"{tmp_path} has not answered for over 640 s"
        assert uses == [tmp_path], "one thread hangs, not one at each look"
    finally:
        free.set()
    assert once(probe, clock) == []


@pytest.mark.skipif(bool(no_fuse()), reason=no_fuse())
@pytest.mark.parametrize("use", [writes, lists])
def test_a_file_system_whose_server_is_stopped(tmp_path: Path, use: Callable[[Path], None]) -> None:
    clock = Clock()
    with file_system(tmp_path / "mount", tmp_path / "behind") as served:
        probe = Probe(served.folder, use, EVERY_S, clock)
        assert once(probe, clock) == []
        served.stall()
        began = time.monotonic()
        clock.now += EVERY_S
        assert probe.read() == ()
        clock.now += DEADLINE_S + 1.0
        (found,) = probe.read()
        assert (found.kind, found.subject) == ("file_system_stalled", str(served.folder))
        assert found.evidence == f"{served.folder} has not answered for over 10 s"
        assert time.monotonic() - began < DEADLINE_S, "by the test's clock: nothing waited here"
        served.answer()
        assert once(probe, clock) == []
        eventually(lambda: list(served.folder.iterdir()) == [], 10, "also by the use that was due meanwhile")


def test_what_stalls_is_told_before_a_step_counts_as_a_hang() -> None:
    """If one node reports it and another not yet, the stall would be taken for the first node's own."""
    assert max(EVERY_S, EVERY_SHARED_S) + DEADLINE_S + LOOK_S < HangSpec().at_least_s


def test_a_shared_folder_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o555)
    lists(tmp_path / "run")
    folders = SharedFolders()
    folders.use({str(tmp_path / "run"), str(tmp_path / "gone")})
    assert folders.read() == []
    eventually(lambda: all(not p._thread.is_alive() for p in folders._probes.values() if p._thread), 10)
    assert folders.read() == [], "a folder that is not there (any more) is a person's doing"
    kept = folders._probes[str(tmp_path / "run")]
    folders.use({str(tmp_path / "run")})
    assert folders._probes == {str(tmp_path / "run"): kept}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("some avg10=90.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=19.99 avg60=0.00 avg300=0.00 total=0\n", []),
        ("some avg10=90.00 avg60=0 avg300=0 total=0\nfull avg10=20.00 avg60=0 avg300=0 total=0\n", ["memory_pressure"]),
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", []),
    ],
)
def test_memory_pressure(tmp_path: Path, text: str, kinds: list[str]) -> None:
    (tmp_path / "memory").write_text(text)
    assert [fact.kind for fact in host.memory(tmp_path / "memory")] == kinds


PRESSURE = Path("/proc/pressure/memory")


@pytest.mark.skipif(not PRESSURE.exists(), reason="this kernel tells no pressure")
def test_this_kernels_own_pressure_is_understood(tmp_path: Path) -> None:
    """The file is read as it is now; with a pressure of a fifth and more, the kernel's own text becomes a fact."""
    host.memory()
    words = [word for line in PRESSURE.read_text().splitlines() for word in line.split() if word.startswith("avg10=")]
    assert len(words) == 2
    (tmp_path / "memory").write_text(PRESSURE.read_text().replace(words[1], "avg10=33.33"))
    (found,) = host.memory(tmp_path / "memory")
    assert found.evidence == "every process waited for memory during 33.33 % of the last 10 s"


THRASH = """
import mmap, random, sys
sys.stdin.readline()
with open(sys.argv[1], "rb") as file:
    # what can be executed is kept as long as what is used again and again: that it has to be read again is a want of memory
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)
pages.madvise(mmap.MADV_RANDOM)
while True:
    pages[mmap.PAGESIZE * random.randrange(len(pages) // mmap.PAGESIZE)]
"""
FILE_BYTES, HAS_BYTES = 64 << 20, 12 << 20


@contextmanager
def in_cgroups(pid: int) -> Iterator[None]:
    """Puts it in a cgroup that limits its memory, and in one (maybe another) whose pressure the kernel reports."""
    with memory_cgroup("thrash") as limited:
        limited.limit(HAS_BYTES)
        limited.add(pid)
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        unified = next((mount[1] for mount in mounts if mount[2] == "cgroup2"), None)
        if oom_kills.pressure(oom_kills.cgroup_of(pid)) is not None or unified is None:
            yield
            return
        folder = Path(unified) / f"supervisor-{os.getpid()}-pressure"
        folder.mkdir()
        try:
            (folder / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            eventually(lambda: not (folder / "cgroup.procs").read_text(), 10)
            folder.rmdir()


@pytest.mark.timeout(360)
@pytest.mark.skipif(
    bool(no_memory_cgroup()) or not PRESSURE.exists(), reason=no_memory_cgroup() or "it tells no pressure"
)
def test_a_job_whose_cgroup_has_too_little_memory(tmp_path: Path) -> None:
    """The job uses a file that does not fit into its cgroup, on a machine with memory enough."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(
            file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED
        )  # pages that we have read are ours, and in our cgroup
    job = subprocess.Popen([sys.executable, "-c", THRASH, str(path)], stdin=subprocess.PIPE)
    assert job.stdin is not None
    with ExitStack() as stack:
        stack.enter_context(in_cgroups(job.pid))
        stack.callback(job.wait)
        stack.callback(job.kill)
        if oom_kills.pressure(oom_kills.cgroup_of(job.pid)) is None:
            pytest.skip("the kernel tells no pressure of a cgroup")
        assert host.memory(tmp_path / "not the machine's", job.pid) == ()
        with job.stdin:
            job.stdin.write(b"go\n")
        (found,) = eventually(lambda: host.memory(tmp_path / "not the machine's", job.pid), 90, "it waits for memory")
        assert (found.kind, found.subject) == ("memory_pressure", "memory")
        assert found.evidence.startswith("every process of this job's cgroup waited for memory during ")
        assert host.memory(tmp_path / "not the machine's") == (), "we do not"


def test_a_kernel_without_pressure_says_nothing(tmp_path: Path) -> None:
    assert host.memory(tmp_path / "none") == ()


@pytest.mark.parametrize(("answer", "kinds"), [((0, 0x2001), []), ((5, 0x40), ["clock_unsynchronised"])])
def test_the_clock(answer: tuple[int, int], kinds: list[str]) -> None:
    assert [fact.kind for fact in host.clock(answer)] == kinds


def test_the_kernel_is_asked_and_not_changed() -> None:
    before = kernel_clock()
    assert 0 <= before[0] <= 5
    assert kernel_clock()[1] == before[1]


def test_a_link_that_was_up_and_is_not_any_more(tmp_path: Path) -> None:
    for name, state in (("eth0", "up"), ("ib0", "up"), ("ifb0", "down"), ("lo", "unknown")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "operstate").write_text(state + "\n")
    links = host.Links(tmp_path)
    assert links.read() == ()
    (tmp_path / "ib0" / "operstate").write_text("down\n")
    (found,) = links.read()
    assert (found.kind, found.subject, found.evidence) == ("link_down", "ib0", "interface ib0 was up and is down")
    (tmp_path / "ib0" / "operstate").write_text("up\n")
    assert links.read() == ()


@pytest.mark.parametrize("name", ["docker0", "virbr0", "cni0", "veth12ab", "tun0"])
def test_what_only_containers_and_tunnels_use_may_go_down(tmp_path: Path, name: str) -> None:
    """A bridge goes down when its last container ends, and stays down."""
    (tmp_path / name / "bridge").mkdir(parents=True)
    (tmp_path / name / "operstate").write_text("up\n")
    links = host.Links(tmp_path)
    assert links.read() == ()
    (tmp_path / name / "operstate").write_text("down\n")
    assert links.read() == ()


def test_a_bond_that_was_up_and_is_not_any_more(tmp_path: Path) -> None:
    (tmp_path / "bond0" / "bonding").mkdir(parents=True)
    (tmp_path / "bond0" / "operstate").write_text("up\n")
    links = host.Links(tmp_path)
    assert links.read() == ()
    (tmp_path / "bond0" / "operstate").write_text("lowerlayerdown\n")
    (found,) = links.read()
    assert found.evidence == "interface bond0 was up and is lowerlayerdown"


def test_an_interface_that_is_gone_is_told_if_a_device_was_behind_it(tmp_path: Path) -> None:
    """A device that fell off the bus takes its interface along. Those of containers and tunnels have none, and come and
    go."""
    pci = tmp_path / "devices" / "0000:10:00.0"
    pci.mkdir(parents=True)
    net = tmp_path / "net"

    def there(name: str, state: str) -> None:
        (net / name).mkdir(parents=True, exist_ok=True)
        (net / name / "operstate").write_text(f"{state}\n")

    for name, state in (("ib0", "up"), ("veth1", "up"), ("docker0", "up"), ("eth1", "down")):
        there(name, state)
    for name in ("ib0", "eth1"):
        (net / name / "device").symlink_to(pci)
    links = host.Links(net)
    assert links.read() == ()
    for name in ("ib0", "veth1", "docker0", "eth1"):
        shutil.rmtree(net / name)
    for _ in range(2):
        (found,) = links.read()
        assert (found.kind, found.subject, found.evidence) == ("link_down", "ib0", "interface ib0 was up and is gone")
    there("veth1", "down")
    assert links.read() == (found,), "another one under the name of one that went"
    there("ib0", "up")
    assert links.read() == ()


LINKS = """
import sys
from pathlib import Path
from agents.health.facts import host
links = host.Links(Path(sys.argv[1]))
for line in sys.stdin:
    print([(fact.kind, fact.subject, fact.evidence) for fact in links.read()], flush=True)
"""


@pytest.mark.skipif(bool(netns.available()), reason=netns.available())
def test_a_real_link_that_goes_down(tmp_path: Path) -> None:
    """A network namespace stands for a machine. Its link is virtual, so the test presents it as one with a device."""
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    (tmp_path / "eth0" / "operstate").symlink_to("/sys/class/net/eth0/operstate")
    with netns.network(1) as network:
        inside = ["ip", "netns", "exec", network.nodes[0][0], sys.executable, "-c", LINKS, str(tmp_path)]
        with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as looks:

            def look() -> str:
                assert looks.stdin is not None
                assert looks.stdout is not None
                looks.stdin.write("look\n")
                looks.stdin.flush()
                return looks.stdout.readline().strip()

            assert look() == "[]"
            network.cut(0)
            down = str([("link_down", "eth0", "interface eth0 was up and is down")])
            eventually(lambda: look() == down, 10, "it is told")
            network.mend(0)
            eventually(lambda: look() == "[]", 10, "and that it is over")
            looks.communicate()


def test_a_source_that_is_broken_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    fact = Fact(kind="k", subject="s", evidence="e")

    def broken() -> list[Fact]:
        raise OSError(5, "Input/output error")

    told: list[tuple[Fact, ...]] = []
    facts = Facts([broken, lambda: [fact]], told.append)
    assert facts.look() == facts.look() == (fact,)
    assert len([r for r in caplog.records if "a source of facts failed" in r.message]) == 1
    facts.start()
    eventually(lambda: told, 10)
    facts.stop()
    facts.join(10)
    assert told == [(fact,)]


def test_a_source_with_news_is_asked_before_its_turn() -> None:
    holds: list[Fact] = []
    told: list[tuple[Fact, ...]] = []
    facts = Facts([lambda: list(holds)], told.append)
    facts.start()
    for number in range(5):
        holds.append(Fact(kind="k", subject=str(number), evidence="e"))
        facts.soon()
        eventually(lambda: told and told[-1] == tuple(holds), LOOK_S / 2)
    facts.stop()
    facts.join(10)


@pytest.mark.long
@ROOT
@pytest.mark.etcd
def test_a_nodes_agent_publishes_them(etcd_server: EtcdServer, store: Store, tmp_path: Path) -> None:
    def kinds() -> set[str] | None:
        item = store.get(keys.health("n0"))
        return {fact.kind for fact in decode(item.value, Health).facts} if item is not None else None

    with tmpfs(tmp_path / "disk", 16 << 20) as folder, Nodes(folder, etcd_server.endpoint) as nodes:
        nodes.cold("n0")
        eventually(lambda: kinds() is not None and "disk_full" not in (kinds() or ()), 30, "all is well")
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * BYTES)
        eventually(lambda: "disk_full" in (kinds() or ()), 4 * EVERY_S, "it is told")
        filler.unlink()
        eventually(
            lambda: (told := kinds()) is not None and "disk_full" not in told, 4 * EVERY_S, "and that it is over"
        )
