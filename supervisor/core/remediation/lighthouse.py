"""Manages the one seat of the lighthouse: who has it, when it is taken away, and when the next may open (ADR 6)."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.memory import Lighthouse
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S, GateView, RankView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

QUORUM_ID_MARGIN = 100
"""Quorum ids that are skipped: a node's last report may be some quorums behind; raising by 2,000 takes 1.4 s."""
QUORUM_IDS_UNSEEN = 10_000
"""Quorums that ranks may report beyond those that the gate has reported, which a restored backup may make old. Without a
limit a node that turned could report a number up to which no lighthouse ever gets."""

MARGIN_S = 1.0
"""Seconds that a gate's own timers add to their timeouts on a busy machine; they tick every 50 ms."""


def seat_lighthouse(r: Round) -> None:
    """Gives the seat to a service host, takes it from a lighthouse that is dead, and notes where its gate listens."""
    seat = r.before.lighthouse
    if not seat.node:
        seat = _next(r, seat, Reason.of(Code.RUN_STARTS))
    else:
        seat = _listening(r, seat)
        seat = _note_mute(r, seat)
        if r.paused:
            pass  # hands off
        elif _ended(r, seat):
            seat = _next(r, seat, Reason.of(Code.SEAT_ENDED, node=seat.node, generation=seat.generation))
        else:
            seat = _closing(r, seat) if seat.closing else _serving(r, seat)
    if seat.node and not seat.address and not seat.closing:
        r.wait(Reason.of(Code.SEAT_NOT_UP))
    if seat.mute_since is None and r.observed.control.down > r.before.downs_done:
        r.draft = replace(
            r.draft, downs_done=r.observed.control.down
        )  # meant for a lighthouse that has gone or come back meanwhile
    if seat != r.before.lighthouse:
        r.draft = replace(r.draft, lighthouse=seat)


def _gate(r: RoundView, seat: Lighthouse) -> GateView | None:
    gate = r.observed.gate
    return gate if gate is not None and (gate.node, gate.generation) == (seat.node, seat.generation) else None


def _listening(r: RoundView, seat: Lighthouse) -> Lighthouse:
    gate = _gate(r, seat)
    if gate is None or seat.closing or gate.address == seat.address:
        return seat
    return replace(seat, address=gate.address, opened=r.now)


def _note_mute(r: RoundView, seat: Lighthouse) -> Lighthouse:
    """Notes since when its gate's lease is gone. For one lease after an outage of the store nothing is known of it."""
    gate, host = _gate(r, seat), r.observed.nodes.get(seat.node)
    present = gate.present if gate is not None else host is not None and host.registered
    if present:
        # A gate that was closed before it ever listened is not started any more: its host's return is no sign of it.
        never_came = seat.closing and gate is None
        return replace(seat, mute_since=None) if seat.mute_since is not None and not never_came else seat
    if seat.mute_since is None and r.observed.store_stable_s >= r.spec.policy.node_lease_s:
        return replace(seat, mute_since=r.now)
    if seat.mute_since is None:
        r.wait(Reason.of(Code.SEAT_AWAY), until=r.now + 1.0)
    return seat


def _ended(r: RoundView, seat: Lighthouse) -> bool:
    """Returns true if the shim of its host reports that its process has ended."""
    host = r.observed.nodes.get(seat.node)
    return host is not None and host.registered and seat.generation in host.lighthouses_ended


def _serving(r: Round, seat: Lighthouse) -> Lighthouse:
    if seat.mute_since is None:
        return seat
    reached = [rank.group for rank in _ours(r) if rank.reaches_gate]
    if reached:
        r.wait(Reason.of(Code.SEAT_REACHED, by=reached[0]), until=r.now + 1.0)
        return seat
    if not _lost_to_the_gate(r, seat):
        r.wait(Reason.of(Code.SEAT_MUTE), until=r.now + 1.0)
        return seat
    why = Reason.of(Code.SEAT_LOST, node=seat.node)
    r.act("close_lighthouse", f"close_lighthouse:{seat.generation}", why, node=seat.node, generation=seat.generation)
    return replace(seat, closing=True, address="", cut_since=None)


def _closing(r: Round, seat: Lighthouse) -> Lighthouse:
    gate = _gate(r, seat)
    admitted = gate.admitted if gate is not None else {}
    # the old gate has cut all that it has fenced, and no one points those forwarders elsewhere any more
    uncut = {x.group for x in _ours(r) if x.gate != "" and x.generation >= admitted.get(x.group, 0)}
    if uncut:
        r.wait(Reason.of(Code.SEAT_UNCUT, node=seat.node, uncut=tuple(sorted(uncut))))
        return replace(seat, cut_since=None) if seat.cut_since is not None else seat
    lost = _lost_to_the_gate(r, seat)
    if not lost:
        r.wait(Reason.of(Code.SEAT_CLOSING, node=seat.node), until=r.now + 1.0)
        return seat
    if seat.cut_since is None:
        seat = replace(seat, cut_since=r.now)
    mute_since = seat.mute_since if seat.mute_since is not None else r.now
    assert seat.cut_since is not None
    closed = MARGIN_S + max(
        mute_since + GATE_ETCD_SILENCE_S, seat.cut_since + r.spec.torchft.heartbeat_timeout_ms / 1000
    )
    if r.now < closed:
        r.wait(Reason.of(Code.SEAT_HAS_TIME, node=seat.node, lost=lost[0]), until=closed)
        return seat
    return _next(r, seat, Reason.of(Code.SEAT_CLOSED, node=seat.node, lost=lost[0]))


def _ours(r: RoundView) -> list[RankView]:
    """Ranks that run on live nodes."""
    return [
        rank for node in r.observed.nodes.values() if node.registered for rank in node.ranks if rank.state != "exited"
    ]


def _lost_to_the_gate(r: RoundView, seat: Lighthouse) -> list[int]:
    """Groups that the old gate admits and that surely do not reach it. Their node lives, or the engine or a person
    reports that their processes have ended. Callers check first that no forwarder on a live node still reaches it."""
    gate = _gate(r, seat)
    if gate is None or all(group.phase == "unplaced" for group in r.groups.values()):
        # The gate never reported that it listens, so no group knows where it is; or none was started since.
        return sorted(r.groups) or [0]
    if r.observed.control.down > r.before.downs_done:
        return sorted(r.groups) or [0]  # a person reports that they are down
    lost = []
    for g, generation in sorted(gate.admitted.items()):
        group = r.groups.get(g)
        if group is None:
            continue
        # The gate may admit an older generation than we want by now; its nodes are known until it is fenced.
        seats = group.seats if generation == group.generation else group.left
        if seats and all(_is_known(r, seat) for seat in seats):
            lost.append(g)
    return lost


def _is_known(r: RoundView, seat: Seat) -> bool:
    """Returns true if the state of a node's processes is known: its agent answers, or the engine has ended them."""
    node, by = r.observed.nodes.get(seat.node), r.observed.grants.get(r.given_by(seat))
    return (node is not None and node.registered) or (by is not None and by.state == "gone" and by.ended)


def _next(r: Round, seat: Lighthouse, reason: Reason) -> Lighthouse:
    """Opens the next generation, on the same host if that lives."""
    if r.paused:
        return seat
    hosts = sorted(n.name for n in r.observed.nodes.values() if n.role == "service" and n.registered)
    if not hosts:
        r.wait(Reason.of(Code.SEAT_NO_HOST))
        return seat
    node = seat.node if seat.node in hosts else hosts[0]
    generation = seat.generation + 1
    newest = _newest_quorum(r, seat)
    floor = max(seat.quorum_ids_above, newest + QUORUM_ID_MARGIN if newest > 0 else 0)
    r.act("lighthouse", f"lighthouse:{generation}", reason, node=node, generation=generation)
    return Lighthouse(node=node, generation=generation, quorum_ids_above=floor)


def _newest_quorum(r: RoundView, seat: Lighthouse) -> int:
    """Returns the highest number of a quorum that the seat's lighthouse may have given."""
    reported = max((rank.quorum_id for node in r.observed.nodes.values() for rank in node.ranks), default=0)
    gate = _gate(r, seat)
    seen = gate.quorum_id if gate is not None else 0
    return max(seen, min(reported, max(seen, seat.quorum_ids_above) + QUORUM_IDS_UNSEEN))
