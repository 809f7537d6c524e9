"""The facts that an agent reports of GPUs, with a stand-in for NVML's Python module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.health.facts.gpu import DEADLINE_S, Gpus
from agents.health.facts.gpu_devices import LINKS_EVERY, THROTTLED_LOOKS, Devices, local_rank
from agents.health.facts.gpu_xids import SAME_S, TOLD_S, Xids, in_line
from agents.health.kernel_log import Follower
from fault_injection.doubles.fake_nvml import FakeNvml, gpu
from fault_injection.testbed.waiting import eventually
from supervisor.core.evidence import gpu_faults as core
from supervisor.wire.records import Fact

FIRST = "GPU 0 (0000:10:00.0, GPU-0000)"
SECOND = "GPU 1 (0000:11:00.0, GPU-0001)"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def state() -> dict[str, Any]:
    return {"gpus": [gpu(0), gpu(1)], "events": []}


@pytest.fixture
def nvml(state: dict[str, Any]) -> Iterator[FakeNvml]:
    made = FakeNvml(lambda: state)
    yield made
    made.freed.set()


Make = Callable[..., Gpus]


@pytest.fixture
def started(nvml: FakeNvml) -> Iterator[Make]:
    """Starts sources that look every few milliseconds."""
    made = []

    def make(news: Callable[[], None] = lambda: None, **about: Any) -> Gpus:
        found = Gpus(nvml, **{"visible": None, "log_lines": list, "every_s": 0.005, **about})
        made.append(found)
        found.start(news)
        return found

    yield make
    for one in made:
        one.stop()


def kinds(facts: Any) -> list[str]:
    return [fact.kind for fact in facts]


# --- lasting conditions ---


def test_healthy_gpus_say_nothing(nvml: FakeNvml) -> None:
    devices = Devices(nvml, None)
    assert devices.look() == devices.look() == []
    assert [str(found) for found in devices.handles] == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("about", "kind", "says"),
    [
        ({"recovery": 1}, "gpu_reset_required", "needs a reset, says the driver"),
        ({"recovery": 2}, "gpu_reset_required", "needs a restart of its machine, says the driver"),
        ({"rows": [0, 1, 0, 1]}, "gpu_rows_failed", "could not remap a row of its memory: NVIDIA advises to replace it"),
        ({"rows": [0, 1, 1, 0]}, "gpu_rows_pending", "will remap rows of its memory at its next reset"),
        ({"ecc": [2, 5]}, "gpu_ecc", "has had 2 memory errors that ECC cannot correct since the driver was loaded, 5 in its life"),
        ({"ecc": [0, 5]}, "gpu_ecc_lifetime", "has had 5 memory errors that ECC cannot correct in its life"),
        ({"slow": 0x40 | 0x80}, "gpu_throttled", "runs slower for a power brake, its temperature (hardware)"),
    ],
)  # fmt: skip
def test_what_holds_now(state: dict[str, Any], nvml: FakeNvml, about: dict[str, Any], kind: str, says: str) -> None:
    devices = Devices(nvml, None)
    assert devices.look() == []
    state["gpus"][1] |= about
    (fact,) = devices.look()
    assert fact == Fact(kind=kind, subject=SECOND, evidence=f"{SECOND} {says}", rank=1)
    assert fact.kind in core.CONDITIONS
    state["gpus"][1] = gpu(1)
    left = [devices.look() for _ in range(THROTTLED_LOOKS)]
    assert left[-1] == [], "it is over"


def test_the_cap_on_power_is_no_fact(state: dict[str, Any], nvml: FakeNvml) -> None:
    state["gpus"][0]["slow"] = nvml.nvmlClocksEventReasonSwPowerCap | nvml.nvmlClocksEventReasonGpuIdle
    assert Devices(nvml, None).look() == []


def test_what_an_older_gpu_or_driver_does_not_know_is_no_fact(state: dict[str, Any], nvml: FakeNvml) -> None:
    state["gpus"][0] |= {"recovery": None, "ecc": None}
    assert Devices(nvml, None).look() == []


def test_one_that_is_lost_and_comes_back(state: dict[str, Any], nvml: FakeNvml) -> None:
    devices = Devices(nvml, None)
    devices.look()
    state["gpus"][0]["lost"] = True
    (fact,) = devices.look()
    assert (fact.kind, fact.evidence) == ("gpu_lost", f"{FIRST} is lost: the driver does not reach it any more")
    state["gpus"][0] |= {"lost": False, "reset": True}
    assert kinds(devices.look()) == ["gpu_reset_required"]
    state["gpus"][0]["reset"] = False
    assert devices.look() == []


def test_one_that_was_there_and_is_not_any_more(state: dict[str, Any], nvml: FakeNvml) -> None:
    """The indices of the GPUs behind it change, their names do not."""
    devices = Devices(nvml, None)
    devices.look()
    state["gpus"][0]["absent"] = True
    assert devices.look() == [], "told at the second look"
    state["gpus"][1]["ecc"] = [1, 1]
    lost, ecc = sorted(devices.look(), key=lambda fact: fact.kind, reverse=True)
    assert (lost.kind, lost.evidence) == ("gpu_lost", f"{FIRST} has disappeared")
    assert (ecc.subject, ecc.rank) == (SECOND, 1)


def test_an_nvlink_that_was_up_and_one_with_new_errors(state: dict[str, Any], nvml: FakeNvml) -> None:
    state["gpus"][0] |= {"links": [1, 1, 0], "errors": [7, 0, 0]}
    devices = Devices(nvml, None)
    assert devices.look() == [], "one that never was up, and errors from before"
    state["gpus"][0] |= {"links": [1, 0, 0], "errors": [9, 0, 0]}
    told = [devices.look() for _ in range(2 * LINKS_EVERY)][-1]
    assert [fact.evidence for fact in told] == [
        f"{FIRST} has lost NVLink 1, which was up",
        f"{FIRST} has counted new errors on NVLink 0",
    ]


@pytest.mark.parametrize(
    ("visible", "ranks"),
    [
        (None, [0, 1]),
        ("1", [-1, 0]),
        ("1,0", [1, 0]),
        ("GPU-0001", [-1, 0]),
        ("", [-1, -1]),
        ("MIG-1234", [None, None]),
    ],
)
def test_the_rank_that_uses_a_gpu(visible: str | None, ranks: list[int | None]) -> None:
    assert [local_rank(index, f"GPU-000{index}", visible) for index in (0, 1)] == ranks


def test_one_that_is_hidden_from_us_is_not_ours(state: dict[str, Any], nvml: FakeNvml) -> None:
    devices = Devices(nvml, "1")
    devices.look()
    state["gpus"][0]["lost"] = True
    state["gpus"][1]["lost"] = True
    assert [(fact.subject, fact.rank) for fact in devices.look()] == [(SECOND, 0)]


# --- NVML itself ---


@pytest.mark.parametrize("problem", ["LibraryNotFound", "DriverNotLoaded"])
def test_a_machine_without_a_gpu_says_nothing(
    state: dict[str, Any], nvml: FakeNvml, started: Make, caplog: pytest.LogCaptureFixture, problem: str
) -> None:
    state["init"] = problem
    gpus = started()
    eventually(lambda: gpus._began is None and gpus.read() == (), 10)
    assert caplog.records == []


def hung(state: dict[str, Any], nvml: FakeNvml, started: Make) -> tuple[Gpus, Clock]:
    """Sources after a call of NVML that does not return."""
    clock = Clock()
    gpus = started(monotonic=clock)
    eventually(lambda: gpus._devices.handles, 10)
    state["hangs"] = True
    eventually(lambda: (began := gpus._began) is not None and not nvml.freed.wait(0.1) and gpus._began == began, 10)
    return gpus, clock


def test_nvml_that_hangs_is_a_fact_and_holds_nobody(state: dict[str, Any], nvml: FakeNvml, started: Make) -> None:
    gpus, clock = hung(state, nvml, started)
    for _ in range(int(DEADLINE_S / 5) + 1):
        assert gpus.read() == ()
        clock.now += 5.0
    assert [(fact.kind, fact.evidence) for fact in gpus.read()] == [
        ("nvml_stalled", f"NVML has not answered for {DEADLINE_S:g} s")
    ]
    state["hangs"] = False
    eventually(lambda: gpus.read() == (), 10, "it answers again")


def test_an_agent_that_was_frozen_takes_nvml_for_stalled_no_sooner(
    state: dict[str, Any], nvml: FakeNvml, started: Make
) -> None:
    gpus, clock = hung(state, nvml, started)
    gpus.read()
    clock.now += 100 * DEADLINE_S
    assert gpus.read() == ()


def test_nvml_that_worked_and_does_not_any_more(state: dict[str, Any], started: Make) -> None:
    gpus = started()
    eventually(lambda: gpus._devices.handles, 10)
    state["error"] = "DriverNotLoaded"
    eventually(lambda: kinds(gpus.read()) == ["nvml_failed"], 10)
    assert gpus.read()[0].evidence == "NVML no longer works: Driver Not Loaded"


# --- Xids ---


def settled(nvml: FakeNvml) -> None:
    """Waits until two waits for events have ended, so that the current generations are known to have been there."""
    waits = nvml.waits
    eventually(lambda: nvml.waits >= waits + 3, 10)


def test_an_xid_is_told_at_once_with_what_ran_when_it_came(
    state: dict[str, Any], nvml: FakeNvml, started: Make
) -> None:
    told: list[None] = []
    gpus = started(news=lambda: told.append(None))
    gpus.running(frozenset({"run.0.1"}))
    eventually(lambda: nvml._registered, 10)
    settled(nvml)
    state["events"].append([1, 79])
    eventually(lambda: told, 10)
    gpus.running(frozenset({"run.0.2"}))
    (fact,) = gpus.read()
    assert fact == Fact(
        kind="gpu_xid", subject=SECOND, evidence=f"{SECOND}: Xid 79, it has fallen off the bus", xid=79, rank=1,
        during=("run.0.1",),
    )  # fmt: skip


def test_what_was_started_after_an_event_was_queued_is_not_said_to_have_run(
    state: dict[str, Any], nvml: FakeNvml, started: Make
) -> None:
    """An event lies in the queue for as long as the agent is frozen; by then another generation may run."""
    gpus = started(news=lambda: gpus.running(frozenset({"run.0.2"})))
    gpus.running(frozenset({"run.0.1"}))
    eventually(lambda: nvml._registered, 10)
    settled(nvml)
    state["events"] += [[0, 13], [0, 79]]
    eventually(lambda: len(gpus.read()) == 2, 10)
    assert {fact.during for fact in gpus.read()} == {("run.0.1",)}
    settled(nvml)
    state["events"].append([1, 79])
    eventually(lambda: len(gpus.read()) == 3, 10)
    assert gpus.read()[2].during == ("run.0.2",)


def test_what_was_started_during_a_wait_is_not_said_to_have_run_before_the_next(
    state: dict[str, Any], nvml: FakeNvml, started: Make
) -> None:
    gpus = started()
    gpus.running(frozenset({"run.0.1"}))
    eventually(lambda: nvml._registered, 10)
    settled(nvml)

    def at_the_end_of_a_wait() -> None:
        nvml.before_timeout = lambda: None
        state["events"].append([0, 79])
        gpus.running(frozenset({"run.0.2"}))

    nvml.before_timeout = at_the_end_of_a_wait
    eventually(lambda: gpus.read(), 10)
    assert [fact.during for fact in gpus.read()] == [("run.0.1",)]


def test_what_was_started_since_the_kernels_log_was_read_is_not_said_to_have_run(started: Make) -> None:
    lines: list[str] = []
    gpus = started(log_lines=lambda: lines)
    eventually(lambda: gpus._devices.handles, 10)
    gpus.running(frozenset({"run.0.1"}))
    gpus.read()
    gpus.running(frozenset({"run.0.2"}))
    lines.append("NVRM: Xid (PCI:0000:10:00): 48, pid=7, name=python")
    (fact,) = gpus.read()
    assert (fact.subject, fact.xid, fact.during) == (FIRST, 48, ("run.0.1",))


def test_one_xid_of_two_sources_is_told_once() -> None:
    clock = Clock()
    seen = Xids(clock)
    mine = next(iter(_known()))
    assert seen.saw(mine, 79, frozenset({"run.0.1"}))
    clock.now += SAME_S
    assert not seen.saw(mine, 79, frozenset())
    assert [(fact.xid, fact.during) for fact in seen.facts()] == [(79, ("run.0.1",))]
    clock.now += 1.0
    assert not seen.saw(mine, 79, frozenset({"run.0.1"})), "the same generation's again"
    clock.now += SAME_S + 1.0
    assert seen.saw(mine, 79, frozenset({"run.0.2"}))
    assert [fact.during for fact in seen.facts()] == [("run.0.1",), ("run.0.2",)]
    clock.now += TOLD_S + 1.0
    assert list(seen.facts()) == []


def _known() -> Any:
    devices = Devices(FakeNvml(lambda: {"gpus": [gpu(0)]}), None)
    devices.look()
    return devices.handles


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=p, GPU has fallen off the bus.", ("0000:18:00", 79)),
        ("NVRM: Xid (PCI:0000:CB:00): 13, pid='<unknown>', name=<unknown>, Graphics SM", ("0000:cb:00", 13)),
        ("NVRM: Xid (PCI:0001:01:00 GPU-I:05): 94, Contained: CE User Channel", ("0001:01:00", 94)),
        ("NVRM: GPU at PCI:0000:18:00: GPU-ab", None),
        ("a program says Xid 79", None),
    ],
)
def test_lines_of_the_kernels_log(line: str, found: tuple[str, int] | None) -> None:
    assert in_line(line) == found


def test_the_kernels_log_is_read_on_from_where_it_was() -> None:
    text = ["[    1.000001] old", "[    2.000000] newest"]
    log = Follower(lambda: "\n".join(text))
    assert log.new() == []
    text += ["<4>[    2.000000] same moment", "[    3.000000][ T12] next", "no time"]
    assert log.new() == ["same moment", "next"]
    assert log.new() == []
    del text[:4]
    text += ["[    9.000000] all that is left"]
    assert log.new() == ["all that is left"], "the ring was overwritten"


def test_a_log_that_was_empty_at_first() -> None:
    text: list[str] = []
    log = Follower(lambda: "\n".join(text))
    assert log.new() == []
    text.append("[    1.000000] first")
    assert log.new() == ["first"]


def test_lines_of_gpus_that_are_not_ours_are_left_out(started: Make) -> None:
    lines = ["NVRM: Xid (PCI:0000:99:00): 79, pid=7"]
    gpus = started(log_lines=lambda: lines)
    eventually(lambda: gpus._devices.handles, 10)
    assert gpus.read() == ()
