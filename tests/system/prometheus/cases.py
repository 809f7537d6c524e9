"""Cases for each alert: scrapes of Prometheus, a minute apart, and when the alert must fire.

In promtool's notation `5+2x3` is 5 7 9 11, `_x3` is three minutes without a scrape, `stale` a scrape without the
series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault that comes and goes."""

    series: Mapping[str, str]
    quiet: int
    """Minute at which the fault is there, but not for long enough; or the last before it."""
    fires: int
    over: int | None = None
    """Minute at which the alert has gone; None: it never does."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels beside its severity."""
    summary: str


_ON = 'supervisor_run_phase{run="r",phase="running",instance="a"}'
_STARTED = 'supervisor_generation{run="r",group="0",instance="a"}'
_LAUNCHED = 'supervisor_run_launched_timestamp_seconds{run="r",instance="a"}'
_STILL = "run r does not progress: no step for 15 minutes, or only repeated steps for an hour"
_STEPS = 'supervisor_committed_steps{run="r",instance="a"}'
_EVERY = 'supervisor_checkpoint_interval_steps{run="r",instance="a"}'

CASES: Mapping[str, tuple[Case, ...]] = {
    "RunNotProgressing": (
        Case(
            series={
                _ON: "1+0x80",
                _STARTED: "1+0x80",
                _STEPS: "0+10x20 200+0x25 201+10x30",
                # one that has ended, one that waits in the queue for its first nodes: neither has to step
                'supervisor_run_phase{run="done",phase="finished"}': "1+0x80",
                'supervisor_generation{run="done",group="0"}': "3+0x80",
                'supervisor_committed_steps{run="done"}': "500+0x80",
                'supervisor_run_phase{run="queued",phase="running"}': "1+0x80",
                'supervisor_generation{run="queued",group="0"}': "0+0x80",
                'supervisor_committed_steps{run="queued"}': "0+0x80",
            },
            quiet=34,
            fires=36,
            over=48,
            labels={"run": "r"},
            summary=_STILL,
        ),
        Case(
            # halted, and resumed from a checkpoint that is older: going back is progress too
            series={
                'supervisor_run_phase{run="r",phase="running"}': "1+0x10 0+0x19 1+0x20",
                'supervisor_run_phase{run="r",phase="halted"}': "0+0x10 1+0x19 0+0x20",
                _STARTED: "1+0x60",
                _STEPS: "0+10x10 100+0x19 50+5x20",
            },
            quiet=24,
            fires=26,
            over=31,
            labels={"run": "r"},
            summary=_STILL,
        ),
        Case(
            # it fails and resumes again and again: while no rank shows the step is exported as 0, which is no progress
            series={
                _ON: "1+0x40",
                _STARTED: "1+0x40",
                _STEPS: "0+10x10 100 0 0 100 100 0 0 100 100 0 0 100 100 0 0 100 100 0 0 100 100 101+1x20",
            },
            quiet=24,
            fires=26,
            over=33,
            labels={"run": "r"},
            summary="run r does not progress: no step for 15 minutes, or only repeated steps for an hour",
        ),
        Case(
            # another supervisor leads every eight minutes; and a command that reports only its output has no steps
            series={
                _ON: "1+0x20 1+0x7 stale _x40",
                _STARTED: "1+0x20 1+0x7 stale _x40",
                _STEPS: "0+10x20 200+0x7 stale _x40",
                'supervisor_run_phase{run="r",phase="running",instance="b"}': "_x30 1+0x6 stale 1+0x20",
                'supervisor_generation{run="r",group="0",instance="b"}': "_x30 1+0x6 stale 1+0x20",
                'supervisor_run_phase{run="output",phase="running"}': "1+0x60",
                'supervisor_generation{run="output",group="0"}': "1+0x60",
                'supervisor_reports_steps{run="output"}': "0+0x60",
            },
            quiet=34,
            fires=37,
            labels={"run": "r"},
            summary=_STILL,
        ),
        Case(
            # a command that reports only its output is halted; then another supervisor leads
            series={
                _ON: "1+0x20 0+0x5 stale _x40",
                'supervisor_run_phase{run="r",phase="halted",instance="a"}': "0+0x20 1+0x5 stale _x40",
                'supervisor_run_phase{run="r",phase="halted",instance="b"}': "_x28 1+0x40",
                _STARTED: "1+0x60",
                'supervisor_reports_steps{run="r"}': "0+0x60",
            },
            quiet=30,
            fires=33,
            labels={"run": "r"},
            summary=_STILL,
        ),
        Case(
            # a person has a rank in the debugger for half an hour, and then no step comes
            series={
                _ON: "1+0x80",
                _STARTED: "1+0x80",
                _STEPS: "0+10x20 200+0x60",
                'supervisor_debugged_groups{run="r",instance="a"}': "0+0x20 1+0x29 0+0x30",
            },
            quiet=64,
            fires=66,
            labels={"run": "r"},
            summary=_STILL,
        ),
        Case(
            # it is halted while a person has a rank in the debugger
            series={
                _ON: "1+0x20 0+0x60",
                'supervisor_run_phase{run="r",phase="halted",instance="a"}': "0+0x20 1+0x60",
                _STARTED: "1+0x80",
                _STEPS: "0+10x10 100+0x70",
                'supervisor_debugged_groups{run="r",instance="a"}': "0+0x10 1+0x70",
            },
            quiet=30,
            fires=33,
            labels={"run": "r"},
            summary=_STILL,
        ),
        Case(
            # another supervisor leads after a minute without a leader: another process exports the steps, and they go
            # on
            series={
                _ON: "1+0x20 _x60",
                _STARTED: "1+0x20 _x60",
                _STEPS: "0+10x20 _x60",
                'supervisor_run_phase{run="r",phase="running",instance="b"}': "_x22 1+0x60",
                'supervisor_generation{run="r",group="0",instance="b"}': "_x22 1+0x60",
                'supervisor_committed_steps{run="r",instance="b"}': "_x22 220+10x20 430+0x40",
            },
            quiet=40,
            fires=59,
            labels={"run": "r"},
            summary=_STILL,
        ),
        Case(
            # it crashes at step 200 again and again, each time five steps after its checkpoint; then it gets past that
            series={
                _ON: "1+0x200",
                _STARTED: "1+0x200",
                _STEPS: f"0+10x20 {'150+10x5 ' * 20}210+10x50",
                # everything was lost once, and more than an hour of steps is made again
                'supervisor_run_phase{run="redo",phase="running"}': "1+0x200",
                'supervisor_generation{run="redo",group="0"}': "1+0x200",
                'supervisor_committed_steps{run="redo"}': "0+10x20 0+1x180",
                # it goes back twice within the hour, and gets further all the same
                'supervisor_run_phase{run="busy",phase="running"}': "1+0x200",
                'supervisor_generation{run="busy",group="0"}': "1+0x200",
                'supervisor_committed_steps{run="busy"}': "0+10x50 400+10x20 580+10x130",
            },
            quiet=88,
            fires=92,
            over=143,
            labels={"run": "r"},
            summary=_STILL,
        ),
    ),
    "RunUndecided": (
        Case(
            series={
                'supervisor_undecided{run="r",instance="a"}': "0+0x10 1+0x10 0+0x10",
                'supervisor_undecided{run="other",instance="a"}': "0+0x30",
            },
            quiet=11,
            fires=13,
            over=22,
            labels={"run": "r"},
            summary="run r: its memory cannot be read, or its decision was refused: its failures are not repaired",
        ),
    ),
    "EttrLow": (
        Case(
            series={
                'supervisor_group_seconds_total{run="r",cause="productive"}': "0+58x60 3510+30x119 7140+60x120",
                'supervisor_group_seconds_total{run="r",cause="hung"}': "0+0x60 30+30x119 3600+0x120",
                'supervisor_group_seconds_total{run="r",cause="start"}': "0+2x60 120+0x119 120+0x120",
                _STARTED: "1+0x300",
                # one that waits in the queue
                'supervisor_group_seconds_total{run="queued",cause="productive"}': "0+0x300",
                'supervisor_group_seconds_total{run="queued",cause="allocate"}': "0+60x300",
                'supervisor_generation{run="queued",group="0"}': "0+0x300",
            },
            quiet=95,
            fires=180,
            over=240,
            labels={"run": "r"},
            summary="run r trained for only 50% of the last hour",
        ),
        Case(
            # launched on nodes that waited for it, it took twelve minutes to start: its first hour is no whole one
            series={
                'supervisor_group_seconds_total{run="r",cause="start"}': "0+60x12 720+0x288",
                'supervisor_group_seconds_total{run="r",cause="productive"}': "0+0x12 60+60x107 6510+30x59 8340+60x120",
                'supervisor_group_seconds_total{run="r",cause="hung"}': "0+0x120 30+30x59 1800+0x120",
                _STARTED: "1+0x300",
            },
            quiet=45,
            fires=180,
            over=240,
            labels={"run": "r"},
            summary="run r trained for only 50% of the last hour",
        ),
        Case(
            # it waited in a queue for two hours: then it trains well, until it waits for half an hour for a node that replaces a lost one
            series={
                'supervisor_group_seconds_total{run="r",cause="productive"}': "0+0x119 0+60x119 7200+0x29 7200+60x60",
                'supervisor_group_seconds_total{run="r",cause="allocate"}': "0+60x119 7200+0x119 7200+60x29 9000+0x60",
                'supervisor_generation{run="r",group="0",instance="a"}': "0+0x119 1+0x20 _x200",
                # another leads from then on: it exports no time without a group, though there was some
                'supervisor_generation{run="r",group="0",instance="b"}': "_x142 1+0x200",
            },
            quiet=155,
            fires=285,
            over=330,
            labels={"run": "r"},
            summary="run r trained for only 50% of the last hour",
        ),
    ),
    "BudgetNearlySpent": (
        Case(
            series={
                'supervisor_budget_left{run="r",rung="replace"}': "4+0x10 2+0x5 1+0x10 4+0x20",
                'supervisor_budget_allowed{run="r",rung="replace"}': "4+0x60",
                # a budget of one that was never drawn on is not nearly spent
                'supervisor_budget_left{run="r",rung="reallocate"}': "1+0x60",
                'supervisor_budget_allowed{run="r",rung="reallocate"}': "1+0x60",
                'supervisor_budget_left{run="r",rung="restart"}': "0+0x60",
                'supervisor_budget_allowed{run="r",rung="restart"}': "0+0x60",
            },
            quiet=15,
            fires=20,
            over=30,
            labels={"run": "r", "rung": "replace"},
            summary="run r has 1 uses left in its replace budget",
        ),
    ),
    "NoSpares": (
        Case(
            series={
                _ON: "1+0x60",
                _STARTED: "1+0x60",
                'supervisor_spare_nodes{run="r"}': "1+0x10 0+0x20 1+0x20",
                'supervisor_spare_nodes_wanted{run="r"}': "1+0x60",
                # one that waits for its first nodes in a queue
                'supervisor_run_phase{run="queued",phase="running"}': "1+0x60",
                'supervisor_generation{run="queued",group="0"}': "0+0x60",
                'supervisor_spare_nodes{run="queued"}': "0+0x60",
                'supervisor_spare_nodes_wanted{run="queued"}': "1+0x60",
                # one that asks for none
                'supervisor_run_phase{run="bare",phase="running"}': "1+0x60",
                'supervisor_spare_nodes{run="bare"}': "0+0x60",
                'supervisor_spare_nodes_wanted{run="bare"}': "0+0x60",
            },
            quiet=20,
            fires=22,
            over=33,
            labels={"run": "r"},
            summary="run r has no spare node: replacing the next lost node needs a new allocation",
        ),
    ),
    "CheckpointsBehind": (
        Case(
            # 50 steps a minute; one that was complete in the sixth minute is the last until the 29th
            series={
                _ON: "1+0x40",
                _EVERY: "100+0x40",
                'supervisor_unsaved_steps{run="r",instance="a"}': "0+50x2 0+50x2 0+50x22 30+50x2 0+50x2 0+50x2 0+50x2",
                # in a run that is well the one that is being written is a little late
                'supervisor_run_phase{run="well",phase="running"}': "1+0x40",
                'supervisor_checkpoint_interval_steps{run="well"}': "100+0x40",
                'supervisor_unsaved_steps{run="well"}': "0+100x3 200 300 200 300 200 300 0+100x3 200+0x20",
                # one that asks for none; one that is halted, and whose steps are lost by now or saved
                'supervisor_run_phase{run="never",phase="running"}': "1+0x40",
                'supervisor_checkpoint_interval_steps{run="never"}': "0+0x40",
                'supervisor_unsaved_steps{run="never"}': "0+50x40",
                'supervisor_run_phase{run="halted",phase="running"}': "0+0x40",
                'supervisor_checkpoint_interval_steps{run="halted"}': "100+0x40",
                'supervisor_unsaved_steps{run="halted"}': "900+0x40",
            },
            quiet=17,
            fires=18,
            over=29,
            labels={"run": "r"},
            summary="run r has 600 steps in no checkpoint: losing all groups at once would lose them",
        ),
        Case(
            # none from its first step on; the next leader goes on where the last one was
            series={
                _ON: "1+0x10 _x30",
                'supervisor_run_phase{run="r",phase="running",instance="b"}': "_x11 1+0x30",
                _EVERY: "100+0x10 _x30",
                'supervisor_checkpoint_interval_steps{run="r",instance="b"}': "_x11 100+0x30",
                'supervisor_unsaved_steps{run="r",instance="a"}': "0+50x10 _x30",
                'supervisor_unsaved_steps{run="r",instance="b"}': "_x11 550+50x30",
            },
            quiet=11,
            fires=12,
            labels={"run": "r"},
            summary="run r has 600 steps in no checkpoint: losing all groups at once would lose them",
        ),
    ),
    "FlappingNode": (
        Case(
            series={
                # it had one before the day began; n2 had only one; the next leader exports the third
                _LAUNCHED: "0+0x5000",
                'supervisor_node_incidents_total{run="r",node="n1",instance="a"}': "1+0x1500 2+0x10 _x3000",
                'supervisor_node_incidents_total{run="r",node="n1",instance="b"}': "_x1512 3+0x3000",
                'supervisor_node_incidents_total{run="r",node="n2",instance="a"}': "_x1500 1+0x3000",
            },
            quiet=1505,
            fires=1520,
            over=2960,
            labels={"node": "n1"},
            summary="node n1 had 2 incidents within a day",
        ),
        Case(
            # of two runs, whose series begin with the first incident
            series={
                _LAUNCHED: "0+0x40",
                'supervisor_run_launched_timestamp_seconds{run="s",instance="a"}': "0+0x40",
                'supervisor_node_incidents_total{run="r",node="n1"}': "_x5 1+0x20",
                'supervisor_node_incidents_total{run="s",node="n1"}': "_x10 1+0x20",
            },
            quiet=9,
            fires=11,
            labels={"node": "n1"},
            summary="node n1 had 2 incidents within a day",
        ),
        Case(
            # Prometheus is brought up beside a run of ten days: it does not know when the incidents that it finds were
            series={
                _LAUNCHED: "-864000+0x40",
                'supervisor_node_incidents_total{run="r",node="n1"}': "7+0x10 8+0x10 9+0x20",
                'supervisor_node_incidents_total{run="r",node="n2"}': "7+0x40",
            },
            quiet=15,
            fires=23,
            labels={"node": "n1"},
            summary="node n1 had 2 incidents within a day",
        ),
        Case(
            # a day ago there was no leader for two minutes, or scrapes failed: its incidents did not all begin then
            series={
                _LAUNCHED: "-864000+0x100 stale _x1 -864000+0x2000",
                'supervisor_node_incidents_total{run="r",node="n1"}': "7+0x100 stale _x1 7+0x1500 8+0x10 9+0x100",
                'supervisor_node_incidents_total{run="r",node="n2"}': "_x90 1+0x10 stale _x1 1+0x2000",
            },
            quiet=101 + 1440,
            fires=1620,
            labels={"node": "n1"},
            summary="node n1 had 2 incidents within a day",
        ),
    ),
    "NoLeader": (
        Case(
            series={
                'supervisor_leader{instance="a"}': "1+0x10 0+0x20",
                'supervisor_leader{instance="b"}': "0+0x10 0+0x5 1+0x20",
            },
            quiet=11,
            fires=13,
            over=18,
            summary="supervisors run, but none leads: failures are not repaired",
        ),
    ),
    "LeaderFlapping": (
        Case(
            series={
                # three supervisors are restarted for an upgrade; later one ends and comes back again and again
                # an epoch is the revision of etcd at which it began
                'supervisor_epoch{instance="a"}': "400+0x20 _x1 0+0x21 700 _x1 800 9000 _x1 10000 11000+0x40",
                'supervisor_leader{instance="a"}': "1+0x20 _x1 0+0x21 1 _x1 1 1 _x1 1 1+0x40",
                'supervisor_epoch{instance="b"}': "300+0x21 50000 _x1 0+0x80",
                'supervisor_leader{instance="b"}': "0+0x21 1 _x1 0+0x80",
                'supervisor_epoch{instance="c"}': "0+0x24 60000+0x17 _x1 0+0x60",
                'supervisor_leader{instance="c"}': "0+0x24 1+0x17 _x1 0+0x60",
            },
            quiet=42,
            fires=51,
            over=65,
            summary="the leader changed 5 times within a quarter of an hour: failures are repaired late or not at all",
        ),
    ),
    "StoreAway": (
        Case(
            series={
                'supervisor_store_up{instance="a"}': "1+0x10 0+0x5 1+0x10",
                # one that is cut off alone is not the store's fault
                'supervisor_store_up{instance="b"}': "0+0x5 1+0x5 0+0x4 1+0x10",
            },
            quiet=11,
            fires=13,
            over=17,
            summary="etcd does not answer any supervisor: nothing is decided",
        ),
    ),
    "StoreSlow": tuple(
        Case(
            series={
                f'{name}_bucket{{le="0.1",{label}}}': "0+60x10 600+0x20 660+60x20",
                f'{name}_bucket{{le="0.5",{label}}}': "0+60x10 600+0x20 660+60x20",
                f'{name}_bucket{{le="2.0",{label}}}': "0+60x10 660+60x20 1920+60x20",
                f'{name}_bucket{{le="+Inf",{label}}}': "0+60x10 660+60x20 1920+60x20",
            },
            quiet=13,
            fires=25,
            over=40,
            summary="etcd takes 1.85s to answer: leases may expire",
        )
        for name, label in (
            ("supervisor_store_seconds", 'instance="a"'),
            ("supervisor_commit_seconds", 'run="r"'),
            ("agent_report_seconds", 'node="n1"'),
        )
    ),
    "StoreOutOfSpace": (
        Case(
            series={
                'supervisor_store_alarms{instance="a"}': "0+0x10 1+0x5 0+0x10",
                'supervisor_store_up{instance="a"}': "1+0x30",
                # one that was cut off while the alarm stood
                'supervisor_store_alarms{instance="b"}': "0+0x10 1+0x20",
                'supervisor_store_up{instance="b"}': "1+0x12 0+0x20",
            },
            quiet=10,
            fires=11,
            over=17,
            summary="etcd has raised an alarm: it accepts no writes until a person clears it",
        ),
    ),
    "StoreLarge": (
        Case(
            series={'supervisor_store_size_bytes{instance="a"}': "50000000+0x10 1800000000+0x10 50000000+0x10"},
            quiet=15,
            fires=17,
            over=23,
            summary="etcd's database is 1.676GiB large: at its quota it accepts no writes",
        ),
    ),
    "CertificateExpires": (
        Case(
            series={
                # a day is 1,440 minutes: ten days are 864,000 s; in the third hour another one is put there
                'supervisor_certificate_expiry_timestamp_seconds{instance="a"}': "867600+0x120 3456000+0x60",
                'supervisor_certificate_expiry_timestamp_seconds{instance="b"}': "3456000+0x180",
                # a node's is renewed by itself
                'agent_certificate_expiry_timestamp_seconds{node="n1"}': "86400+60x180",
            },
            quiet=64,
            fires=67,
            over=122,
            labels={"instance": "a"},
            summary="the supervisor at a: the first of its certificate, its authorities and its deny list expires in 9d 23h 53m 0s",
        ),
        Case(
            # by hand: two days are left when it is first seen, one when it is known that no one renews it
            series={
                'agent_certificate_expiry_timestamp_seconds{node="by-hand"}': "180000+0x2000 3456000+0x60",
                'agent_certificate_expiry_timestamp_seconds{node="n1"}': "86400+60x2060",
            },
            quiet=1443,
            fires=1447,
            over=2003,
            labels={"node": "by-hand"},
            summary="node by-hand: the first of its certificate, its authorities and its deny list expires in 1d 1h 53m 0s",
        ),
        Case(
            series={
                'agent_certificate_expiry_timestamp_seconds{node="n1"}': "28800+0x300 104400+0x60",
                'agent_certificate_expiry_timestamp_seconds{node="n2"}': "28800+60x360",
                'agent_certificate_expiry_timestamp_seconds{node="plain"}': "+Inf+0x360",
            },
            quiet=244,
            fires=247,
            over=302,
            labels={"node": "n1"},
            summary="node n1: the first of its certificate, its authorities and its deny list expires in 3h 53m 0s",
        ),
    ),
    "LighthouseAway": (
        Case(
            series={
                _ON: "1+0x60",
                _STARTED: "1+0x60",
                'agent_gate_groups{run="r",node="host",hearing="beating"}': "2+0x10 stale _x4 1+0x20",
                'agent_gate_groups{run="r",node="host",hearing="gone"}': "0+0x10 stale _x4 1+0x20",
                # one that has not begun has no gate yet
                'supervisor_run_phase{run="queued",phase="running"}': "1+0x60",
                'supervisor_generation{run="queued",group="0"}': "0+0x60",
            },
            quiet=11,
            fires=15,
            over=17,
            labels={"run": "r"},
            summary="no node reports a gate of run r: without a lighthouse no group steps",
        ),
    ),
    "AgentVersionSkew": (
        Case(
            series={
                'agent_info{node="n1",version="1.0"}': "1+0x20 _x1000",
                'agent_info{node="n1",version="1.1"}': "_x21 1+0x1000",
                'agent_info{node="n2",version="1.0"}': "1+0x500 _x600",
                'agent_info{node="n2",version="1.1"}': "_x501 1+0x600",
                'supervisor_info{instance="a",version="1.0"}': "1+0x10 _x1000",
                'supervisor_info{instance="a",version="1.1"}': "_x11 1+0x1000",
            },
            quiet=370,
            fires=372,
            over=510,
            summary="supervisors or agents have run in 2 versions side by side for hours",
        ),
    ),
    "SupervisorBlind": (
        Case(
            series={'supervisor_leader{instance="a"}': "1+0x10 _x10 1+0x10"},
            quiet=10,
            fires=17,
            over=22,
            summary="no supervisor answers Prometheus, or the leader keeps its lease but does nothing",
        ),
        Case(
            series={
                'supervisor_leader{instance="a"}': "1+0x40",
                'supervisor_leader{instance="b"}': "0+0x40",
                'supervisor_loop_silent_seconds{instance="a"}': "0.3+0x10 60+60x10 0.3+0x10",
                'supervisor_loop_silent_seconds{instance="b"}': "0+0x40",
                # a page that gets no data is no stalled loop
                'supervisor_watch_silent_seconds{instance="a"}': "600+60x40",
                'supervisor_watch_silent_seconds{instance="b"}': "600+60x40",
            },
            quiet=11,
            fires=13,
            over=22,
            labels={"instance": "a"},
            summary="no supervisor answers Prometheus, or the leader keeps its lease but does nothing",
        ),
    ),
    "BreakerOpen": (
        Case(
            series={'supervisor_breaker_held{run="r"}': "0+0x10 1+0x5 0+0x10"},
            quiet=10,
            fires=11,
            over=17,
            labels={"run": "r"},
            summary="many nodes or groups of run r failed at once: the breaker holds until they are back or a person decides",
        ),
    ),
    "ShadowWouldHaveKilled": (
        Case(
            series={
                _LAUNCHED: "0+0x100",
                'supervisor_shadow_incidents_total{run="r",rung="restart"}': "_x10 1+0x100",
                'supervisor_shadow_incidents_total{run="r",rung="ride_through"}': "_x5 1+0x100",
            },
            quiet=9,
            fires=20,
            over=75,
            labels={"run": "r", "rung": "restart"},
            summary="run r: in the last hour restart was due 1 times, and was only observed",
        ),
    ),
    "Watchdog": (
        Case(
            series={_ON: "1+0x10"},
            quiet=-1,
            fires=0,
            summary="always fires: if it stops, Prometheus or Alertmanager is down",
        ),
    ),
}
