"""Lists every fault, also those that cannot be made yet, with the reason."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from fault_injection.faults import control, engine, storage
from fault_injection.faults import inject as made
from fault_injection.faults.fault import Family, Fault, Inject, Need, Site
from fault_injection.in_rank import causes
from fault_injection.testbed.slurm import AWAY_S
from supervisor.core.model.kinds import Kind

# --- needs ---


def here(site: Site) -> str:
    return site.not_here


def obeying(site: Site) -> str:
    return site.not_here or site.not_obeying


def memory_cgroup(site: Site) -> str:
    return site.no_memory_cgroup


def own_disks(site: Site) -> str:
    return site.no_own_disks


def links(site: Site) -> str:
    return site.no_cut


def filters(site: Site) -> str:
    return site.no_filter


def own_etcd(site: Site) -> str:
    return site.no_own_etcd


def house(site: Site) -> str:
    return site.no_house


def collectives(site: Site) -> str:
    return site.no_collective


def resets(site: Site) -> str:
    return site.no_reset


def faketime(site: Site) -> str:
    return site.no_faketime


def traces(site: Site) -> str:
    return site.no_trace


# --- faults ---


def _crash(
    name: str, how: str, inject: Inject, *needs: Need, kind: Kind = Kind.CRASH, family: Family = "process"
) -> Fault:
    return Fault(name=name, family=family, how=how, inject=inject, needs=needs, kinds=(kind,))


def _hang(
    name: str,
    how: str,
    inject: Inject,
    *needs: Need,
    family: Family = "process",
    writers: bool = False,
    shown: bool = False,
) -> Fault:
    kinds = (Kind.HANG, Kind.STALLED)
    return Fault(
        name=name,
        family=family,
        how=how,
        inject=inject,
        needs=needs,
        kinds=kinds,
        stalls=True,
        writers=writers,
        shown=shown,
    )


def _rides(
    name: str, family: Family, how: str, inject: Inject, *needs: Need, stays_s: float = 0.0, stalls: bool = False
) -> Fault:
    return Fault(name=name, family=family, how=how, inject=inject, needs=needs, stays_s=stays_s, stalls=stalls)


def _gpu(name: str, how: str, inject: Inject) -> Fault:
    """Defines a fault of a GPU that does not exist: a fake driver reports it to the agent (gpus.py)."""
    return Fault(name=name, family="gpu", how=how, inject=inject, needs=(here, house), kinds=(Kind.GPU,))


_ALL = (
    # process
    _crash("sigkill", "SIGKILL to a rank", made.signalled(signal.SIGKILL), here),
    _crash("sigsegv", "SIGSEGV to a rank, from outside", made.signalled(signal.SIGSEGV), here),
    _crash("sigabrt", "SIGABRT to a rank, from outside", made.signalled(signal.SIGABRT), here),
    _crash("sigterm", "SIGTERM to a rank that none of ours sent", made.signalled(signal.SIGTERM), here),
    _crash("segfault", "a rank reads address 0", made.ordered(causes.SEGFAULT), obeying),
    _crash("abort", "a rank calls abort()", made.ordered(causes.ABORT), obeying),
    _crash("exit_code", "a rank exits with code 7", made.ordered(causes.EXIT), obeying, kind=Kind.ERROR),
    _crash("exception", "a rank raises, once", made.ordered(causes.RAISE), obeying, kind=Kind.ERROR),
    Fault(
        name="exception_always", family="process", how="a rank raises at each start, until a person mends it",
        inject=made.raised_always, needs=(obeying, house), kinds=(Kind.ERROR,), takes_s=made.LEFT_OUT_WITHIN_S,
    ),
    Fault(
        name="exception_everywhere", family="process", how="every rank raises at one step; a person resumes the run",
        inject=made.raised_everywhere, needs=(obeying, house), kinds=(Kind.SAME_ERROR, Kind.ERROR), echoes=(Kind.SAME_ERROR, Kind.ERROR), stalls=True,
    ),
    _crash("killed_for_memory", "a rank takes more than its memory cgroup has", made.for_memory, obeying, memory_cgroup, kind=Kind.OOM),
    _hang("stopped", "SIGSTOP to a rank", made.stopped, here, shown=True),
    # longer than the heartbeat timeout of a run that is started to be broken, shorter than policy.hang.stopped_s
    _rides("hiccup", "process", "SIGSTOP to a rank, SIGCONT after 1.2 s", made.stopped, here, stays_s=1.2),
    _hang("gil_held", "C code keeps the interpreter's lock", made.ordered(causes.HOLD_GIL), obeying),
    _hang("endless_loop", "a rank computes for ever", made.ordered(causes.LOOP), obeying),
    Fault(
        name="slow_step", family="process", how="every step of a rank takes half a second longer; a person restarts it",
        inject=made.slowed, needs=(obeying,), kinds=(Kind.REQUESTED,), stays_s=10.0,
    ),
    # collectives
    _rides("group_aborted", "collectives", "a rank aborts its process group", made.aborted, here),
    Fault(
        name="collective_skipped", family="collectives", how="a rank leaves out a collective of its group",
        # Gloo ends a rank that receives more than it expects; elsewhere the others wait in it
        inject=made.ordered(causes.SKIP_COLLECTIVE), needs=(obeying, collectives), kinds=(Kind.CRASH, Kind.ERROR, Kind.HANG, Kind.STALLED), stalls=True,
    ),
    _rides("socket_reset", "collectives", "the kernel ends a rank's connections with the other groups", made.connections_reset, here, resets),
    # data
    _hang("data_blocked", "the data loader reads a pipe that no one writes", made.ordered(causes.BLOCK_DATA), obeying, family="data"),
    _crash("data_raises", "the data loader raises", made.ordered(causes.RAISE_DATA), obeying, kind=Kind.ERROR, family="data"),
    Fault(name="nan_batch", family="data", how="a batch holds NaN", missing="a batch of a language model is token ids, which cannot be NaN"),
    # state
    Fault(
        name="nan_weight", family="state", how="NaN planted in a weight of one group",
        inject=made.ordered(causes.PLANT_NAN), needs=(obeying,), kinds=(Kind.NUMERICS,), echoes=(Kind.ERROR,), stalls=True,
    ),
    Fault(
        name="bit_flip", family="state", how="one bit of a parameter flips, silently; a person restarts the group",
        inject=made.bit_flipped, needs=(obeying,), kinds=(Kind.REQUESTED,), stays_s=10.0, drifts=True,
    ),
    Fault(
        name="heal_source_killed", family="state", how="the other groups are killed, and while the first of them heals from this one, this one too",
        inject=made.heal_source_killed, needs=(obeying,), kinds=(Kind.CRASH,), echoes=(Kind.CRASH, Kind.ERROR, Kind.PEERS_GONE), stalls=True,
    ),
    Fault(
        name="checkpoint_torn", family="state", how="the newest checkpoint is cut off in its middle, then all ranks are killed",
        inject=made.checkpoint_torn, needs=(house,), kinds=(Kind.CRASH,), echoes=(Kind.CRASH,), stalls=True,
    ),
    # it trains on without writing down what it commits: to the checkers its group stands still
    _rides("disk_full", "state", "the disk of a node, for logs and records, is full for 30 s", made.disk_full, here, own_disks, stays_s=30.0, stalls=True),
    _hang("checkpoint_blocked", "rank 0 writes its checkpoint into a pipe that no one reads", made.ordered(causes.BLOCK_CHECKPOINT), obeying, family="state", writers=True),
    *(
        Fault(name=name, family="state", how=how, inject=inject, needs=(house, own_disks), writers=True, takes_s=storage.TAKES_S)
        for name, how, inject in (
            ("checkpoint_disk_full", "the disk of the checkpoints is full until one fails", storage.checkpoint_disk_full),
            ("checkpoint_folder_gone", "the folder of the checkpoints is empty and read-only until one fails", storage.checkpoint_folder_gone),
        )
    ),
    # agent
    _rides("agent_killed", "agent", "SIGKILL to a node's agent", made.agent_killed, here),
    _rides("agent_stopped", "agent", "SIGSTOP to a node's agent for 6 s", made.agent_stopped, here, stays_s=6.0),
    _rides("agent_cut_off", "agent", "a node's agent does not reach etcd until 3 s after its lease has lapsed", made.agent_cut_off, house, filters, stays_s=3.0),
    # node
    Fault(
        name="node_killed", family="node", how="SIGKILL to everything of a node", inject=made.node_killed,
        needs=(here,), kinds=(Kind.NODE_LOST, Kind.CRASH),
    ),
    Fault(
        name="node_silent", family="node", how="a node's link goes down: silent, as a dead host", inject=made.node_cut,
        needs=(house, links), kinds=(Kind.NODE_LOST,),
    ),
    _rides("clock_moved", "node", "the clock of a node's agent jumps three hours ahead, for 6 s", made.clock_moved, house, faketime, stays_s=6.0),
    # supervisor
    _rides("supervisor_killed", "supervisor", "SIGKILL to the leader", control.leader_killed, here),
    _rides("supervisor_stopped", "supervisor", "SIGSTOP to the leader for 3 s", control.leader_stopped, here, stays_s=3.0),
    _crash("failpoint", "SIGKILL to the leader and a rank; the next leader dies right after it has decided about it", control.failpoint, house, family="supervisor"),
    # lighthouse
    _rides("lighthouse_killed", "lighthouse", "SIGKILL to the lighthouse", control.lighthouse_killed, here, stalls=True),
    _rides("lighthouse_stopped", "lighthouse", "SIGSTOP to the lighthouse", control.lighthouse_stopped, here, stays_s=8.0, stalls=True),
    _rides("gate_killed", "lighthouse", "SIGKILL to the gate", control.gate_killed, here, stalls=True),
    _rides("lighthouse_delayed", "lighthouse", "answers of the lighthouse come up to 0.1 s late, for 6 s", control.lighthouse_delayed, here, stays_s=6.0),
    # etcd
    _rides("etcd_killed", "etcd", "SIGKILL to all of etcd, which is started again", control.etcd_killed, own_etcd),
    _rides("etcd_stopped", "etcd", "SIGSTOP to all of etcd for 4 s", control.etcd_stopped, own_etcd, stays_s=4.0),
    _rides("etcd_compacted", "etcd", "compacted beyond the watch of the leader, which is stopped for 2 s", control.etcd_compacted, here, own_etcd, stays_s=2.0),
    _rides("etcd_leader_lost", "etcd", "the leader of three members is lost for 6 s", control.etcd_leader_lost, house, stays_s=6.0),
    _rides("etcd_quorum_lost", "etcd", "two of three members are lost for 6 s", control.etcd_quorum_lost, house, stays_s=6.0),
    _rides("etcd_out_of_space", "etcd", "its database is full for 6 s", control.etcd_out_of_space, house, stays_s=6.0),
    _rides("etcd_slow", "etcd", "each fsync takes 0.4 s longer, for 6 s", control.etcd_slow, house, traces, stays_s=6.0),
    # engine
    Fault(
        name="allocation_gone", family="engine", how="the engine takes an allocation away", inject=made.allocation_gone,
        needs=(engine.local, here), kinds=(Kind.ALLOCATION_LOST,),
    ),
    Fault(
        name="job_cancelled", family="engine", how="scancel of a node's job", inject=engine.job_cancelled,
        needs=(engine.on_slurm, engine.cancels), kinds=(Kind.ALLOCATION_LOST,), anywhere=True,
    ),
    Fault(
        name="node_drained", family="engine", how="Slurm drains a node until it is left", inject=engine.node_drained,
        needs=(engine.on_slurm, engine.drains), kinds=(Kind.LEAVING,), takes_s=engine.LEAVES_WITHIN_S, anywhere=True,
    ),
    Fault(
        name="replacement_pending", family="engine", how="no other node is free for 10 s",
        inject=engine.replacement_pending, needs=(engine.own_nodes, engine.fills), kinds=(Kind.ALLOCATION_LOST,), stays_s=engine.PENDING_S,
        takes_s=2 * engine.PENDING_WITHIN_S, takes_spares=True, anywhere=True,
    ),
    Fault(
        name="controller_away", family="engine", how="slurmctld is stopped for 5 s",
        inject=engine.controller_away, needs=(engine.on_slurm, engine.controller), stays_s=AWAY_S, anywhere=True,
    ),
    # gpu
    _gpu("gpu_xid", "Xid 79: the GPU is not reached over its bus", made.gpu_fails("xid 79", xid=79)),
    _gpu("gpu_ecc", "a memory error that ECC cannot correct (Xid 48), by which its rank ends", made.gpu_fails("xid 48", xid=48, ecc=[1, 1], dies=True)),
    _gpu("gpu_lost", "a GPU falls off the bus", made.gpu_fails("gpu_lost", lost=True)),
)  # fmt: skip

FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _ALL}
