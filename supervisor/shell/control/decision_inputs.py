"""Keeps the inputs of `decide` beside the journal, so that a decision can be computed again (ADR 13)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.spec import EnvSpec, HooksSpec, RunSpec, TitanSpec
from supervisor.shell.control.build_info import program
from supervisor.wire.records import ascii_json

log = logging.getLogger(__name__)

BYTES = 128 * 2**20
"""Most bytes of each of the two files: when the newer is full, it replaces the older. An input of 1,000 groups takes
0.27 MB with one rank each, and 1.4 MB with eight (ADR 13)."""

LEVEL = 1
"""Compression level of zlib: 9 saves a sixth, in five to seven times the time."""

NAMES = ("inputs.jsonl", "inputs.1.jsonl")
"""The newer and the older file."""

_DIGEST = re.compile(rb'\{"digest":"(\w+)"')


class LostInput(ValueError):
    """An input is not kept, or can no longer be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Input:
    """Everything from which one decision was made."""

    observed: Observed
    spec: RunSpec
    memory: Memory


@dataclass(frozen=True, slots=True)
class Given:
    """An input as it is stored."""

    body: bytes
    """JSON."""
    digest: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A recovered input, and the program that decided on it."""

    given: Input
    program: str


def lean(spec: RunSpec) -> RunSpec:
    """Returns a spec without the parts that may hold secrets: commands, hooks, environment, and the texts of jobs."""
    slurm = replace(spec.allocation.slurm, setup="", agent_command="", flags=())
    allocation, trainer = replace(spec.allocation, slurm=slurm), replace(spec.trainer, command=())
    return replace(spec, trainer=trainer, allocation=allocation, env=EnvSpec(), hooks=HooksSpec())


def _of_decisions(spec: RunSpec) -> RunSpec:
    """Returns what decisions read of a spec."""
    titan = TitanSpec(steps=spec.titan.steps, checkpoint_interval_steps=spec.titan.checkpoint_interval_steps)
    return replace(lean(spec), titan=titan)


def take(observed: Observed, spec: RunSpec, memory: Memory) -> Given:
    """Returns a decision's input, without the parts that no decision reads and that may hold secrets."""
    asked = observed.relaunch
    if asked is not None:
        observed = replace(observed, relaunch=replace(asked, spec=_of_decisions(asked.spec)))
    body = ascii_json(Input(observed, _of_decisions(spec), memory))
    return Given(body, hashlib.sha256(body).hexdigest()[:16])


class Inputs:
    """Appends to the newer of two files in a run's folder. A full disk is logged once and stops nothing."""

    def __init__(self, folder: Path) -> None:
        self._newer, self._older = (folder / name for name in NAMES)
        self._broken = False

    def keep(self, given: Given) -> None:
        body = base64.b64encode(zlib.compress(given.body, LEVEL)).decode()
        line = json.dumps({"digest": given.digest, "program": program(), "input": body}, separators=(",", ":")).encode()
        try:
            with self._newer.open("ab") as file:
                # Starts a new line, whatever a killed supervisor may have left before it.
                file.write(b"\n" + line + b"\n")
                size = file.tell()
            if size > BYTES:
                os.replace(self._newer, self._older)
            self._broken = False
        except OSError as error:
            if not self._broken:
                log.error(
                    "cannot record the inputs of decisions in %s: %s; the run goes on", self._newer, error.strerror
                )
            self._broken = True


def find(folder: Path, digests: Collection[str]) -> dict[str, Kept | LostInput]:
    """Returns, by digest, the inputs that are kept in a run's folder. Raises OSError if a file cannot be read."""
    found: dict[str, Kept | LostInput] = {}
    for name in NAMES:
        path = folder / name
        if path.exists():
            found |= {digest: read for digest, read in _wanted(path, digests) if digest not in found}
    return found


def _wanted(path: Path, digests: Collection[str]) -> Iterator[tuple[str, Kept | LostInput]]:
    with path.open("rb") as file:
        for line in file:
            match = _DIGEST.match(line)
            if match is not None and (digest := match[1].decode()) in digests:
                try:
                    yield digest, _read(line, digest)
                except LostInput as lost:
                    yield digest, lost


def _read(line: bytes, digest: str) -> Kept:
    try:
        written: dict[str, Any] = json.loads(line)
        body = zlib.decompress(base64.b64decode(written["input"], validate=True))
    except (ValueError, KeyError, TypeError, binascii.Error, zlib.error) as error:
        raise LostInput("its line is torn") from error
    if hashlib.sha256(body).hexdigest()[:16] != digest:
        raise LostInput("it is not the input of this decision: its digest differs")
    by = str(written.get("program", "unknown"))
    with suppress(ValidationError):
        return Kept(_adapter().validate_json(body), by)
    try:  # it holds half of a surrogate pair, or another version wrote it
        return Kept(_adapter().validate_python(json.loads(body)), by)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LostInput(
            f"version {by} wrote it, and this one ({program()}) cannot read its {where} ({first['msg']}): ask with that version"
        ) from error


@cache
def _adapter() -> TypeAdapter[Input]:
    return TypeAdapter(Input)
