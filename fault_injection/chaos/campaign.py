"""Takes a schedule to a certificate: unfolds it, breaks and heals the run, reads its history and judges it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fault_injection.chaos import certificate, own
from fault_injection.chaos.live import CompactableStore, LiveRun
from fault_injection.chaos.runner import Runner
from fault_injection.chaos.schedule import Plan, Schedule, unfold
from fault_injection.chaos.watch import Watcher
from fault_injection.checkers import history_file
from fault_injection.faults import site as sites
from fault_injection.faults.fault import Site
from fault_injection.parity import twin
from fault_injection.sim.lane import commit
from fault_injection.testbed import corpus
from fault_injection.testbed.netns import Network
from supervisor.core.model.spec import GroupsSpec
from supervisor.ports.errors import Fatal, PortError
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.dev.home import system_folder
from supervisor.shell.history import files as histories
from supervisor.shell.history.files import FaultDone, History, Setting
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import RunRecord
from supervisor.wire.version import DISTRIBUTION

ENDS_WITHIN_S = 60.0
"""Seconds in which a run that was asked to stop has ended: a step, a last checkpoint, and each node's grace period."""

LEFT = ("plan.toml", "history.jsonl", "report.json", "report.html")

PACKAGES = (DISTRIBUTION, "torch", "torchft", "torchtitan")


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Breaks a run by a schedule and certifies the outcome. Its two entries return true if the certificate is green.

    `wanted`: makes the schedule for what can be broken there. `ranks`, `nodes`: per group, where a system is started for
    it."""

    wanted: Callable[[Site], Schedule]
    say: Callable[[str], None]
    ranks: int = 1
    nodes: int = 1
    out: Path | None = None
    dry_run: bool = False

    def on_its_own(self, home: Path, name: str, cold: bool, network: Network | None = None) -> bool:
        """Breaks a run in a system that is started for it and ended after. With a network, this process is in its
        hub."""
        tokens = home.resolve() / name / "tokens"
        made = own.spec(name, self.ranks, tokens, self.nodes)
        plan = self._plan(made.groups, sites.of_machine(self.ranks))
        if self.dry_run:
            return True
        refuse_if_there(home / name)
        if self.out is not None:
            refuse_if_left(self.out)
        broken, ended_well = None, True
        try:
            corpus.build_store(tokens, own.STORE_MEGABYTES)
        except BaseException:
            shutil.rmtree(home / name, ignore_errors=True)  # nothing has begun: the same command may be given again
            raise
        try:
            with own.started(home, made, cold, self.say, network) as live:
                broken = self._break(live, plan, to_its_end=True)
        except Exception as error:
            if broken is None:
                raise
            self.say(f"the system did not end as it should: {sentence(error)}")
            ended_well = False
        history, whole = broken
        return self._certify(history, live, whole) and ended_well

    def against(self, store: CompactableStore, run: str, home: Path) -> bool:
        """Breaks a live run, which goes on afterwards. Raises Fatal when the run does not allow that."""
        record = client.choose_run(Mirror(store.list(keys.PREFIX)), run)
        refuse_unless_allowed(record)
        if not record.spec.titan.digest_interval_steps:
            self.say(
                f"warning: this cannot be green: titan.digest_interval_steps is 0 in the run file of {record.spec.name}, so no states are compared and "
                "digests_equal is unknown; launch one with titan.digest_interval_steps = 5"
            )
        watcher = Watcher(store, record.spec.name)
        watcher.start()
        try:
            live = LiveRun(store, watcher, record, system_folder(home))
            plan = self._plan(record.spec.groups, live.site())
            if self.dry_run:
                return True
            refuse_if_left(self._folder(live))
            history, whole = self._break(live, plan, to_its_end=False)
        finally:
            watcher.stop()
        return self._certify(history, live, whole)

    def _plan(self, groups: GroupsSpec, site: Site) -> Plan:
        plan = unfold(self.wanted(site), groups.count, groups.ranks_per_group, site, groups.nodes_per_group)
        self.say(f"seed {plan.seed}: {len(plan.faults)} faults; {len(plan.not_available)} cannot be made here")
        for planned in plan.faults:
            self.say(str(planned))
        return plan

    def _break(self, live: LiveRun, plan: Plan, to_its_end: bool) -> tuple[History, bool]:
        """Breaks the run by the plan. Returns its history, which is saved whatever ends the campaign, and whether it
        ran without an interruption."""
        folder = self._folder(live)
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / "plan.toml")
        runner = Runner(live, live.record.spec, plan, self.say)
        began, left, whole, given_up = time.time(), None, True, ""
        try:
            try:
                runner.run()
            except KeyboardInterrupt:
                whole, given_up = False, "interrupted"
                if any(fault.healed is None for fault in runner.done):
                    self.say("interrupted again: not all that was broken is healed")
                    raise
                self.say("interrupted: what was broken is healed")
            # whatever was raised, the faults made until then must be judged
            except Exception as error:  # noqa: BLE001
                given_up = sentence(error)
                self.say(f"given up: {given_up}")
            finally:
                ended = time.time()
            try:
                if to_its_end:
                    live.stop(ENDS_WITHIN_S)
                left = live.left(ended=to_its_end)
            except Exception as error:  # noqa: BLE001
                self.say(f"the run was not seen to end: {sentence(error)}")
        finally:
            history = histories.read(live.run, Path(live.run_dir), live.system)
            history.setting = setting(live.record, plan, began, ended, to_its_end, given_up)
            history.faults, history.left = runner.done, left
            history.seen = live.seen()
            history_file.save(history, folder / "history.jsonl")
            self.say(f"history: {folder / 'history.jsonl'}")
        return history, whole

    def _certify(self, history: History, live: LiveRun, whole: bool) -> bool:
        folder = self._folder(live)
        parity = twin.parity(history, self.say) if whole else twin.unknown("the run was interrupted")
        body = certificate.write(history, folder, parity)
        summary(body, history.faults, self.say)
        self.say(f"report: {folder / 'report.html'}")
        return bool(body["green"])

    def _folder(self, live: LiveRun) -> Path:
        return self.out if self.out is not None else Path(live.run_dir)


def refuse_if_there(folder: Path) -> None:
    """Raises Fatal if the folder of an older run is there."""
    if folder.exists():
        raise Fatal(f"{folder} already exists: choose another --name, or remove it")


def refuse_if_left(folder: Path) -> None:
    """Raises Fatal if the folder cannot be written, or holds what an earlier campaign left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Fatal(
            f"plan, history and report cannot be written into {folder}: {error.strerror}; choose --out"
        ) from error
    if left := [name for name in LEFT if (folder / name).exists()]:
        raise Fatal(f"{folder / left[0]} is there already, from an earlier one: choose another --out, or remove it")


def refuse_unless_allowed(record: RunRecord) -> None:
    """Raises Fatal unless the run file allows that the run is broken."""
    if record.spec.chaos != "allowed":
        raise Fatal(
            f'run {record.spec.name} may not be broken: its run file does not say chaos = "allowed"; launch one that does, or '
            "leave --run out to break one that is started here"
        )


def sentence(error: Exception) -> str:
    """Returns the error's own sentence; for an unforeseen error also the place where it was raised."""
    if isinstance(error, PortError | OSError):
        return str(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} ({Path(at.filename).name}, line {at.lineno})"


def setting(record: RunRecord, plan: Plan, began: float, ended: float, to_its_end: bool, given_up: str = "") -> Setting:
    """Collects what the checkers must know of a run broken from `began` to `ended`. `given_up`: why it was cut
    short."""
    spec = record.spec
    budget = spec.policy.budget
    return Setting(
        seed=plan.seed,
        plan=tuple(str(planned) for planned in plan.faults),
        planned=len(plan.faults),
        groups=spec.groups.count,
        ranks=spec.groups.ranks_per_group,
        nodes=spec.groups.nodes_per_group,
        began=began,
        ended=ended,
        budgets={"restart": budget.restart, "replace": budget.replace, "reallocate": budget.reallocate},
        window_s=budget.window_s,
        breaker_window_s=spec.policy.breaker.window_s,
        to_its_end=to_its_end,
        given_up=given_up,
        not_available=dict(plan.not_available),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Returns the versions of what runs here, and the commit of these sources, if known (`+`: changed since)."""
    found = {"python": platform.python_version(), **{p: v for p in PACKAGES if (v := _version(p))}}
    return found | {"commit": commit()} | ({"etcd": v} if (v := _etcd()) else {})


def _etcd() -> str:
    """Returns the version of this machine's etcd; empty if there is none."""
    try:
        said = subprocess.run(["etcd", "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.partition("\n")[0].rpartition(" ")[2]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def summary(body: dict[str, object], faults: list[FaultDone], say: Callable[[str], None]) -> None:
    """Prints the certificate in a few lines."""
    checkers: dict[str, dict[str, object]] = body["checkers"]  # type: ignore[assignment]
    made = sum(1 for fault in faults if fault.made is not None)
    unknown: dict[str, str] = body["unknown"]  # type: ignore[assignment]
    ettr = "unknown" if body["ettr"] is None else f"{float(str(body['ettr'])):.1%}"
    steps = "unknown" if body["steps_committed"] is None else body["steps_committed"]
    say(f"{made} faults made, ETTR {ettr}, {steps} steps committed")
    for part, why in unknown.items():
        say(f"UNKNOWN: {part}: {why}")
    for name, judged in checkers.items():
        if judged["answer"] != "pass":
            say(f"{str(judged['answer']).upper()}: {name}: {'; '.join(judged['sentences'])}")  # type: ignore[arg-type]
    parity: dict[str, object] = body["loss_parity"]  # type: ignore[assignment]
    say(f"loss parity: {parity['answer']}: {parity['why']}")
    passed = sum(1 for judged in checkers.values() if judged["answer"] == "pass")
    say(f"checkers: {passed} of {len(checkers)} pass")
