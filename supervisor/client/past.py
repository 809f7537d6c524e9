"""A past run, from the files in its folder: no etcd is asked. Its tables are pandas DataFrames, its lists need no pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.client.errors import EverstepError, sentences

if TYPE_CHECKING:
    import pandas

    from supervisor.shell.inspect.decision_replay import Why
    from supervisor.shell.inspect.incident_times import IncidentStatus
    from supervisor.shell.inspect.merged_log import Entry

UNIX_S = "_unix_s"
"""End of the names of values in Unix seconds."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One committed step of one rank."""

    run: str
    group: int
    generation: int
    rank: int
    step: int
    loss: float | None
    """None if the rank does not report one."""
    step_s: float | None
    """Seconds that it took, from the end of what came before; None if its start is not recorded."""
    time_unix_s: float
    """When it was committed, by its node's clock."""


@dataclass(frozen=True, kw_only=True)
class CauseSeconds:
    """The time of a group under one cause."""

    run: str
    group: int
    cause: str
    seconds: float
    share: float
    """Part of the group's time, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Every second of a run, by cause, as `supervisor ledger` prints it."""

    run: str
    phase: str
    over: bool
    """False for a run that goes on: it counts up to now, or to its last sign of life."""
    seconds: float
    begin_unix_s: float
    end_unix_s: float
    ettr: float
    """Share of the time that produced committed steps, from 0 to 1."""
    badput: Mapping[str, float]
    """The other shares, by cause; with `ettr` they add up to 1."""
    by_group: tuple[CauseSeconds, ...]
    by_incident: Mapping[str, Mapping[str, float]]
    """Incident -> group-seconds that it cost, by cause."""
    wrong: tuple[str, ...]
    """Sentences on what does not add up, or on files that are missing here; empty if all is well."""


@sentences()
def open(folder: str | Path) -> PastRun:
    """Opens the folder of a run, such as `runs/debug`, on the machine of its supervisor. Steps are found if the nodes'
    files are there too, as those of `supervisor up` are. Raises EverstepError if it holds no journal."""
    from supervisor.shell.history import account

    name, system = account.located(Path(folder))
    return PastRun(Path(folder).resolve(), name, system)


class PastRun:
    """A run's files, made by `open`. Each call reads them again, so a run that goes on may be looked at too."""

    def __init__(self, folder: Path, name: str, system: Path) -> None:
        self.folder, self.name, self._system = folder, name, system

    def __repr__(self) -> str:
        return f"<PastRun {self.name} in {self.folder}>"

    @sentences()
    def incidents_list(self) -> tuple[IncidentStatus, ...]:
        """Returns its failures, in the order in which they were opened, as its journal has them."""
        from supervisor.shell.history import files
        from supervisor.shell.inspect import decision_replay, incident_times
        from supervisor.wire.records import Account

        found = decision_replay.incidents(self._journal).values()
        kept = files.read(self.name, self.folder, self._system).account
        return incident_times.statuses(found, kept or Account(), self._journal)

    @sentences()
    def steps_list(self) -> list[Step]:
        """Returns the committed steps of all ranks, by group, generation and rank; empty if no node's files are here."""
        from supervisor.shell.history import files

        history = files.without_later(files.read(self.name, self.folder, self._system))
        ranks = sorted(history.steps, key=lambda s: (s.group, s.generation, s.rank))
        return [
            Step(
                run=self.name,
                group=of.group,
                generation=of.generation,
                rank=of.rank,
                step=int(line["step"]),
                loss=line.get("loss"),
                step_s=line["t"] - line["start"] if "start" in line else None,
                time_unix_s=line["t"],
            )
            for of in ranks
            for line in of.committed()
        ]

    @sentences()
    def ledger(self) -> Ledger:
        """Accounts for its seconds by cause. Raises EverstepError if its journal has no decision yet."""
        from supervisor.shell.history import account

        found = account.of_run(self.folder)
        return Ledger(
            **{name: found[name] for name in ("run", "phase", "over", "seconds", "begin_unix_s", "end_unix_s", "ettr")},
            badput=found["badput"],
            by_group=tuple(
                CauseSeconds(run=self.name, group=group, cause=cause, seconds=seconds, share=seconds / sum(of.values()))
                for group, of in found["groups"].items()
                for cause, seconds in of.items()
                if seconds
            ),
            by_incident={incident["id"]: incident["lost_s"] for incident in found["incidents"]},
            wrong=tuple(found["wrong"]),
        )

    @sentences()
    def explain(self, incident: str) -> Why:
        """Explains an incident from the journal alone: `print(past.explain("i1"))` prints what the command prints."""
        from supervisor.shell.inspect import decision_replay

        return decision_replay.of_journal_file(self._journal, incident)

    @sentences()
    def logs(
        self,
        group: int | None = None,
        rank: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        grep: str = "",
    ) -> Iterator[Entry]:
        """Returns the lines of all ranks and generations as one log, the oldest first, with process ends and incidents, as
        Run.logs does from this machine's files. Raises EverstepError if the nodes' files are not here."""
        from supervisor.shell.inspect import merged_log, past_logs

        wish = merged_log.Wish(group=group, rank=rank, since=since, tail=tail, grep=grep)
        return iter(past_logs.opened(self.folder).entries(wish))

    def incidents(self) -> pandas.DataFrame:
        """Returns `incidents_list()` as a table, with times in UTC. Raises EverstepError without pandas."""
        from supervisor.shell.inspect.incident_times import IncidentStatus

        return _table(IncidentStatus, self.incidents_list)

    def steps(self) -> pandas.DataFrame:
        """Returns `steps_list()` as a table: run, group, generation, rank, step, loss, step_s, time (UTC)."""
        return _table(Step, self.steps_list)

    def goodput(self) -> pandas.DataFrame:
        """Returns `ledger().by_group` as a table: run, group, cause, seconds, share."""
        return _table(CauseSeconds, lambda: self.ledger().by_group)

    @property
    def _journal(self) -> Path:
        return self.folder / "journal.jsonl"


def _table(kind: type, rows: Callable[[], Sequence[Any]]) -> pandas.DataFrame:
    """Returns rows as a table with a column for each field. NAME_unix_s becomes the column NAME, in UTC."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        from supervisor.wire.version import missing

        raise EverstepError(f"this table {missing('pandas')}; the lists need no pandas: docs/PYTHON_API.md") from error
    found = rows()
    table = pandas.DataFrame({field.name: [getattr(row, field.name) for row in found] for field in fields(kind)})
    for field in fields(kind):
        if field.type in ("float", "float | None"):
            table[field.name] = table[field.name].astype(float)  # a column of None alone would hold objects
        if field.name.endswith(UNIX_S):
            table[field.name] = pandas.to_datetime(table[field.name], unit="s", utc=True).dt.round("us")
    return table.rename(columns=lambda name: name.removesuffix(UNIX_S))
