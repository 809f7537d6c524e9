"""Writes the files that a rank's folder needs before its start, and builds the requests that start processes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.agent.names import LighthouseName, TrainerName
from agents.agent.surroundings import StartFailed
from agents.shim.settings import Settings
from supervisor.core.model.spec import NetworkSpec
from supervisor.wire import environment, programs
from supervisor.wire.address import free_port, in_network
from supervisor.wire.records import LighthouseDesired, RecordError, TrainerDesired, TrainerLaunch, decode, encode

OUTPUT = "output.log"
"""The file in a process's folder that takes its output."""

HEARTBEAT_FILE = "heartbeat"
"""The file in a rank's folder that a user's own command may touch."""


def rank_name(desired: TrainerDesired, rank: int) -> TrainerName:
    return TrainerName(desired.run, desired.group, desired.generation, rank)


def read_launch(folder: Path) -> TrainerLaunch | None:
    """Returns the settings that a rank was started with; None if there are none."""
    try:
        return decode((folder / "launch.json").read_bytes(), TrainerLaunch)
    except (OSError, RecordError):
        return None


def address_for(settings: Settings, network: NetworkSpec) -> str:
    """Returns the node's address in a run's network. Raises StartFailed if it has none."""
    if not (network.interface or network.address):
        return settings.address
    try:
        return in_network(network.interface, network.address)
    except ValueError as error:
        key = "network.interface" if network.interface else "network.address"
        raise StartFailed(
            f"{key}: {error} (node {settings.node}); correct the run file, or the node's network"
        ) from error


def write_launches(settings: Settings, desired: TrainerDesired, lighthouse: str) -> None:
    """Writes launch.json for every rank of a generation. One that an agent wrote before it died stays. Raises
    StartFailed."""
    base = ahead(settings, desired)
    folders = [settings.node_folder / "ranks" / str(rank_name(desired, rank)) for rank in desired.ranks]
    written = [launch for launch in map(read_launch, folders) if launch is not None]
    store, _, port = desired.store.rpartition(":")
    master_port = written[0].master_port if written else int(port) if port else free_port(base.node_address)
    base = replace(base, master_port=master_port, store=store, lighthouse=lighthouse)
    for rank, folder in zip(desired.ranks, folders, strict=True):
        if read_launch(folder) is not None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / "launch.tmp"
        temporary.write_bytes(encode(replace(base, rank=rank, rank_dir=str(folder))))
        temporary.replace(folder / "launch.json")


def ahead(settings: Settings, desired: TrainerDesired) -> TrainerLaunch:
    """Returns the settings of the first rank of a generation, but for where it meets others. Raises StartFailed."""
    return TrainerLaunch(
        run=desired.run,
        group=desired.group,
        generation=desired.generation,
        rank=desired.first_rank,
        world_size=desired.world_size,
        groups=desired.groups,
        min_groups=desired.min_groups,
        node=settings.node,
        node_address=address_for(settings, desired.network),
        master_port=0,
        first_rank=desired.first_rank,
        ranks_here=len(desired.ranks),
        lighthouse="",
        run_dir=desired.run_dir,
        rank_dir=str(settings.node_folder / "ranks" / str(rank_name(desired, desired.first_rank))),
        titan=desired.titan,
        torchft=desired.torchft,
        checkpoint=desired.checkpoint,
        resume=desired.resume,
        writer=desired.writer,
        from_memory=desired.from_memory,
        trainer=desired.trainer,
        collective_timeout_s=desired.collective_timeout_s,
        standby=desired.standby == "built",
    )


def trainer_request(settings: Settings, desired: TrainerDesired, rank: int, around: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of the shim's spawn request for a rank. `around`: as `surroundings.fields` returns them."""
    request = {**_of_rank(settings, desired, rank), **around}
    launch = f"{request['folder']}/launch.json"
    if desired.trainer.command:
        own = _own_command(Path(request["folder"]), desired)
        # the run file's [env] may set these; nothing else of ours
        free = {key: value for key, value in DEFAULTS.items() if key not in around["env"]}
        # where there is no such program, env says so and exits with 127: a failed start as any other
        argv = ["env", *desired.trainer.command]
        # the warm process has imported TorchTitan, which such a program does not use
        return {**request, "argv": argv, "own": {**free, **own}, "launch": None, "cold": True}
    cold = settings.cold or desired.standby == "none"
    return {**request, "argv": programs.command("trainer", launch), "launch": launch, "cold": cold}


def _of_rank(settings: Settings, desired: TrainerDesired, rank: int) -> dict[str, Any]:
    name = str(rank_name(desired, rank))
    folder = settings.node_folder / "ranks" / name
    return {"name": name, "folder": str(folder), "log": str(folder / OUTPUT), "env": {}}


DEFAULTS = {
    # `python` is the interpreter that has everstep_trainer; without buffers its output shows that it goes on
    "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
    "PYTHONUNBUFFERED": "1",
    # TorchFT's native part logs ten lines for each step
    "RUST_LOG": os.environ.get("RUST_LOG", "warn"),
}
"""Variables of a user's own command, unless the run file sets them."""


def _own_command(folder: Path, desired: TrainerDesired) -> dict[str, str]:
    """Returns our variables of a user's own command. Raises OSError if its launch.json is gone."""
    launch = read_launch(folder)
    if launch is None:
        raise OSError(f"{folder / 'launch.json'} cannot be read")
    return {
        **environment.meeting_point(launch),
        "REPLICA_GROUP_ID": str(launch.group),
        "NUM_REPLICA_GROUPS": str(launch.groups),
        environment.LAUNCH: str(folder / "launch.json"),
        environment.HEARTBEAT: str(folder / HEARTBEAT_FILE),
    }


def failed_request(settings: Settings, desired: TrainerDesired, rank: int, failed: StartFailed) -> dict[str, Any]:
    """Returns the request for a process in the place of a rank whose start has failed: it says why, and exits. So all
    that follows is as for a rank that fails by itself. Writes its error file."""
    request = _of_rank(settings, desired, rank)
    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.json").write_text(json.dumps({"message": str(failed)}))
    say = ["/bin/sh", "-c", 'printf "%s\\n" "$1" >&2; exit "$2"', "sh", str(failed), str(failed.code)]
    return {**request, "argv": say, "launch": None, "cold": True}


def lighthouse_request(settings: Settings, desired: LighthouseDesired) -> dict[str, Any]:
    """Returns the fields of the shim's spawn request for a gate with its lighthouse."""
    folder = settings.node_folder / "lighthouse" / f"{desired.run}.{desired.generation}"
    options = {
        "run": desired.run,
        "generation": desired.generation,
        "node": settings.node,
        "address": settings.address,
        "folder": folder,
        "etcd": ",".join(settings.etcd),
        "security": settings.security,
        "groups": desired.groups,
        "min-groups": desired.min_groups,
        "quorum-ids-above": desired.quorum_ids_above,
        "join-timeout-ms": desired.torchft.join_timeout_ms,
        "heartbeat-timeout-ms": desired.torchft.heartbeat_timeout_ms,
    }
    return {
        "name": str(LighthouseName(desired.run, desired.generation)),
        "argv": programs.command("gate", *(f"--{key}={value}" for key, value in options.items())),
        "env": {},
        "folder": str(folder),
        "log": str(folder / OUTPUT),
        "launch": None,
        "cold": True,
    }
