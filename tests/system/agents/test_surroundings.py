"""The effect of [env] and [hooks] on a node: real shims and agents, toy trainers, a real etcd."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fault_injection.testbed.nodes import Node, Nodes, desire, kill, observed, rank, registration, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import EnvSpec, HooksSpec
from supervisor.ports.store import Store
from supervisor.wire import environment, keys
from supervisor.wire.records import ExitObserved, Health, decode

FIRST, SECOND = "toy.0.1.0", "toy.0.2.0"
BEFORE, AFTER = "hook.toy.before", "hook.toy.after"


def hook(*lines: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", "\n".join(lines))


def failed(store: Store, generation: int = 1) -> ExitObserved:
    found = eventually(
        lambda: (r := rank(store, "n0", generation)) and r.state == "exited" and r.exit, 15, "the start fails"
    )
    assert isinstance(found, ExitObserved)
    return found


def spawned(node: Node) -> list[str]:
    return [x["name"] for x in node.history() if x["event"] == "spawned" and x["name"] not in ("agent", "warm")]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("hush-hush\n")
    path.chmod(0o600)
    return path


def test_a_rank_has_the_environment_of_its_run_cold_and_then_warm(
    nodes: Nodes, store: Store, secret: Path, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    env = EnvSpec(
        set={"OMP_NUM_THREADS": "3", "LD_LIBRARY_PATH": str(tmp_path)},
        files={"WANDB_API_KEY": str(secret)},
        pass_=("SITE_*",),
        unset=("SITE_NOT",),
        directory=str(tmp_path / "work"),
    )
    node = nodes.start(SITE_KEPT="a", SITE_NOT="b", OTHERS="c")
    eventually(node.warm_ready, 15)
    desire(store, "n0", trainer(env=env))
    cold = running(store, node, 1)
    eventually(lambda: sum(x["event"] == "warm" and x["state"] == "ready" for x in node.history()) > 1, 15)
    desire(store, "n0", trainer(generation=2, env=env))
    warm = running(store, node, 2)
    assert [x.get("warm") for x in node.history() if x["event"] == "spawned" and x["name"] in (FIRST, SECOND)] == [
        False,
        True,
    ], "its first start is cold: the warm process had another environment"
    has = environment.of_process(warm)
    assert {name: has.get(name) for name in ("OMP_NUM_THREADS", "LD_LIBRARY_PATH", "WANDB_API_KEY", "SITE_KEPT")} == {
        "OMP_NUM_THREADS": "3",
        "LD_LIBRARY_PATH": str(tmp_path),
        "WANDB_API_KEY": "hush-hush",  # pragma: allowlist secret
        "SITE_KEPT": "a",
    }
    assert not {"SITE_NOT", "OTHERS"} & has.keys()
    assert Path(f"/proc/{warm}/cwd").resolve() == tmp_path / "work"
    assert cold != warm
    written = [path for path in node.folder.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if b"hush-hush" in path.read_bytes()], "a secret lies on the node's disk"
    assert not [item.key for item in store.list("").items if b"hush-hush" in item.value], "a secret lies in etcd"


def test_a_secret_that_cannot_be_used_fails_the_start(nodes: Nodes, store: Store, secret: Path) -> None:
    node = nodes.cold()
    secret.chmod(0o640)
    about = {"env": EnvSpec(files={"WANDB_API_KEY": str(secret)})}
    for generation, said in ((1, f"run `chmod 600 {secret}` there"), (2, "No such file or directory")):
        desire(store, "n0", trainer(generation=generation, **about))
        end = failed(store, generation)
        assert end.exit_code == 1
        assert end.error_file.startswith("env.files.WANDB_API_KEY: ")
        assert said in end.error_file
        assert "on node n0" in end.error_file
        assert (node.folder / "ranks" / f"toy.0.{generation}.0" / "output.log").read_text() == end.error_file + "\n"
        secret.unlink(missing_ok=True)


def test_hooks_run_once_around_the_stay_and_leave_nothing(nodes: Nodes, store: Store, tmp_path: Path) -> None:
    told, go = tmp_path / "told", tmp_path / "go"
    tell = f'echo "$EVERSTEP_HOOK $EVERSTEP_RUN $EVERSTEP_NODE $EVERSTEP_GROUP $MINE" >>{told}'
    hooks = HooksSpec(
        before=hook(tell, f"until [ -e {go} ]; do sleep 0.05; done", "setsid sleep 1000 &"),
        after=hook(tell, "exit 5"),
        timeout_s=20.0,
    )
    node = nodes.cold()
    about = {"hooks": hooks, "env": EnvSpec(set={"MINE": "yes"})}
    desire(store, "n0", trainer(**about))
    eventually(told.exists, 15, "the hook runs")
    agent = node.pid("agent")
    kill(agent)
    eventually(lambda: node.pid("agent") not in (0, agent), 5)
    go.touch()
    running(store, node, 1)
    kill(node.pid("agent"))
    desire(store, "n0", trainer(generation=2, **about))
    running(store, node, 2)
    assert spawned(node) == [BEFORE, FIRST, SECOND], "a restart in place is the same stay, and so is another agent"
    assert not [stat for stat in node.left() if b"1000" in Path(f"/proc/{stat.pid}/cmdline").read_bytes()]
    desire(store, "n0")
    eventually(lambda: not (node.folder / "hooks" / "toy" / "stay.json").exists(), 15, "its stay ends")
    assert told.read_text().splitlines() == ["before toy n0 0 yes", "after toy n0 0 yes"]
    assert spawned(node) == [BEFORE, FIRST, SECOND, AFTER]
    eventually(
        lambda: (
            (i := store.get(keys.health("n0"))) and "ended with exit code 5" in str(decode(i.value, Health).problems)
        ),
        10,
        "what failed is reported",
    )
    # and a new stay begins with the hook again
    desire(store, "n0", trainer(generation=3, **about))
    running(store, node, 3)
    assert spawned(node)[4:] == [BEFORE, "toy.0.3.0"]


FAILING = (
    (hook("echo no such disk >&2", "exit 3"), 3, "ended with exit code 3; its last lines: no such disk"),
    (("/no/such/program",), 127, "ended with exit code 127; its last lines: "),
    # 78 of a rank means that no machine could train its run file
    (hook("exit 78"), 1, "ended with exit code 78; it printed nothing"),
    (hook("sleep 1000"), 124, "took longer than hooks.timeout_s = 0.3 s and was killed"),
)


def test_a_hook_that_fails_is_a_failed_start(nodes: Nodes, store: Store) -> None:
    node = nodes.cold()
    for generation, (before, code, said) in enumerate(FAILING, 1):
        desire(store, "n0", trainer(generation=generation, hooks=HooksSpec(before=before, timeout_s=0.3)))
        end = failed(store, generation)
        assert end.exit_code == code
        assert end.error_file.startswith("hook before of run toy failed on node n0: ")
        assert said in end.error_file
        wanted = [BEFORE, f"toy.0.{generation}.0"]
        eventually(lambda wanted=wanted: spawned(node)[-2:] == wanted, 5, "the shim's history follows what it does")
    desire(store, "n0", trainer(generation=9))
    running(store, node, 9)


def test_a_hook_of_a_start_that_is_withdrawn_is_killed(nodes: Nodes, store: Store, tmp_path: Path) -> None:
    node = nodes.cold()
    begun = tmp_path / "begun"
    desire(store, "n0", trainer(hooks=HooksSpec(before=hook(f"touch {begun}", "sleep 1000"), timeout_s=100.0)))
    eventually(begun.exists, 15)
    desire(store, "n0")
    eventually(lambda: BEFORE not in node.records() and not observed(store, "n0").trainers, 10)
    assert spawned(node) == [BEFORE]
    assert os.path.exists(node.folder / "hooks" / "toy" / "before.log")


def test_a_node_that_ends_runs_the_hook_after_within_its_grace(nodes: Nodes, store: Store, tmp_path: Path) -> None:
    told = tmp_path / "told"
    # the sleep may get the signal before its shell, which would go on
    slow, quick = (hook("set -e", f"echo begun >>{told}", f"sleep {s}", f"echo done >>{told}") for s in (1000, 0.2))
    for after, said, options in ((quick, ["begun", "done"], ()), (slow, ["begun"], ("--grace-s=0.3",))):
        told.unlink(missing_ok=True)
        node = nodes.cold(f"n{len(options)}", *options)
        desire(store, node.name, trainer(hooks=HooksSpec(after=after)))
        running(store, node, 1)
        node.shim.terminate()
        assert node.shim.wait(timeout=20) == 0
        assert told.read_text().split() == said
        assert node.left() == []
        assert rank(store, node.name, 1).state == "exited", "the agent reported the end"
        assert registration(store, node.name) is None
