"""Makes the corpus: `python -m tests.corpus.record [RUN_FOLDER...]`.

It plays seeds of the simulator, runs the unit tests of `decide`'s parts, and reads the journals of the named run
folders. It keeps a few decisions of each shape: the verbs, kinds and rungs, and the changed fields of memory. Without run folders, the
decisions of the file's own journals stay.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fault_injection.sim import run as sim
from supervisor.core import decide as core
from supervisor.core.model.decision import Decision
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.report.words import said
from supervisor.shell.control import decision_inputs, journal, loop
from tests.corpus.file import INPUT, PATH, Recorded, read, write
from tests.corpus.neutral import answer

SEEDS = {3: 80, 5: 80, 8: 60, 12: 60, 24: 40, 50: 10}
"""Seeds to play, by number of nodes."""
OF_EACH_SHAPE = 6
OF_EACH_SOURCE = 12
"""Decisions to keep from each source at least, of any shape, if they change memory."""

_NUMBERED = re.compile(r"\d+")


class Chosen:
    """The decisions to keep."""

    def __init__(self) -> None:
        self.lines: list[Recorded] = []
        self._shapes: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._waits: tuple[Reason, ...] | None = None

    def offer(self, source: str, observed: Observed, spec: RunSpec, memory: Memory, decision: Decision) -> None:
        if decision.memory is memory and not decision.actions and decision.waits == self._waits:
            return
        self._waits = decision.waits
        found = json.loads(json.dumps(answer(decision, memory)))
        shape = shape_of(found, said(decision.waits))
        if self._shapes[shape] >= OF_EACH_SHAPE and (
            decision.memory is memory or self._sources[source] >= OF_EACH_SOURCE
        ):
            return
        try:
            given = json.loads(decision_inputs.take(observed, spec, memory).body)
        except ValueError:
            return  # a test of an input that cannot be written
        self._shapes[shape] += 1
        self._sources[source] += 1
        self.lines.append(Recorded(source, given, found))


def shape_of(found: dict[str, Any], waits: Sequence[str]) -> str:
    """The shape of a decision: its content without names, numbers and times."""
    about = [f"{a['verb']} {a.get('rung', '')}" for a in found.get("actions", [])]
    about += [f"{i['kind']} {i.get('rung', '')} {i['state']} {i.get('shadow', '')}" for i in found.get("incidents", [])]
    about += [*found.get("set", []), *found.get("gone", []), *(" ".join(w.split()[2:6]) for w in waits)]
    return "|".join(sorted({_NUMBERED.sub("", each) for each in about}))


def simulated(chosen: Chosen) -> None:
    for nodes, seeds in SEEDS.items():
        for seed in range(seeds):
            source = f"simulator: seed {seed} of {nodes} nodes"

            def decide(observed: Observed, spec: RunSpec, memory: Memory, source: str = source) -> Decision:
                decision = core.decide(observed, spec, memory)
                chosen.offer(source, observed, spec, memory, decision)
                return decision

            before, loop.decide = loop.decide, decide  # type: ignore[attr-defined]
            try:
                sim.run(seed, nodes)
            finally:
                loop.decide = before  # type: ignore[attr-defined]
        print(f"{len(chosen.lines)} decisions, after {seeds} seeds of {nodes} nodes", flush=True)


def journals(chosen: Chosen, folders: Sequence[Path]) -> None:
    for folder in folders:
        digests = {line["input"] for line in journal.read(folder / "journal.jsonl") if line.get("input")}
        for kept in decision_inputs.find(folder, digests).values():
            if not isinstance(kept, decision_inputs.LostInput):
                _offer(chosen, f"journal: {folder.name}", kept.given)


def of_unit_tests(chosen: Chosen) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.corpus.capture",
            "-p",
            "no:cacheprovider",
            "tests/unit/core",
        ]
        subprocess.run([*command, f"--capture-decisions={folder}"], check=True)
        for path in sorted(Path(folder).iterdir()):
            for source, given in _captured(path):
                _offer(chosen, f"test: {source}", given)


def _captured(path: Path) -> Iterator[tuple[str, decision_inputs.Input]]:
    for line in path.read_text().splitlines():
        body = json.loads(line)
        yield body["source"], INPUT.validate_python(body["given"])


def _offer(chosen: Chosen, source: str, given: decision_inputs.Input) -> None:
    decision = core.decide(given.observed, given.spec, given.memory)
    chosen.offer(source, given.observed, given.spec, given.memory, decision)


def renewed(path: Path, *, words_alone: bool) -> None:
    """Takes over today's answers and prints those that decide otherwise. Raises ValueError if only words may differ."""
    lines, words, others = [], 0, []
    for number, line in enumerate(read(path)):
        today = line.today()
        fields = sorted(name for name in today.keys() | line.answered if today.get(name) != line.answered.get(name))
        if fields not in ([], ["words"]):
            others.append(f"decision {number} ({line.source}): {', '.join(fields)}")
        words += "words" in fields
        lines.append(replace(line, answered=today))
    if words_alone and others:
        raise ValueError(f"{len(others)} decisions are others, and only words may change: {others[0]}")
    write(lines, path)
    print(*others, f"of {len(lines)} decisions {words} have other words, {len(others)} are others", sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="run folders, with their journal and inputs")
    parser.add_argument("--out", type=Path, default=PATH)
    parser.add_argument(
        "--words", action="store_true", help="keep every decision, and take its sentences as today has them"
    )
    parser.add_argument(
        "--answers", action="store_true", help="keep every input, and take today's answers: for a change on purpose"
    )
    options = parser.parse_args()
    if options.words or options.answers:
        renewed(options.out, words_alone=options.words)
        return
    chosen = Chosen()
    of_unit_tests(chosen)
    if options.folders:
        journals(chosen, options.folders)
    else:  # the systems whose journals the file has are gone: they stay
        chosen.lines += [
            replace(line, answered=line.today()) for line in read(options.out) if line.source.startswith("journal:")
        ]
    simulated(chosen)
    write(chosen.lines, options.out)
    print(f"{len(chosen.lines)} decisions in {options.out}, {options.out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
