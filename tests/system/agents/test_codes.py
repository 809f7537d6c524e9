"""A node's code: fetched before a start, first in what ranks import, and never that of a warm process of before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.nodes import RUN, Node, Nodes, kill, observed, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.spec import EnvSpec
from supervisor.ports.store import Store
from supervisor.wire import environment, keys
from supervisor.wire.code_tree import DIGITS
from supervisor.wire.records import NodeDesired, TrainerDesired, TrainerLaunch, decode, encode
from tests.helpers.code_site import CodeSite, code_site, written

FIRST, SECOND, THIRD = (f"toy.0.{generation}.0" for generation in (1, 2, 3))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CodeSite]:
    with code_site(tmp_path / "system") as made:
        yield made


def synced(site: CodeSite, folder: Path, text: str) -> CodeVersion:
    return CodeVersion(
        version=site.sync(written(folder, {"mine.py": text, "sub/x.py": ""})), folder=str(folder.resolve())
    )


def desire(store: Store, site: CodeSite, code: CodeVersion, *trainers: TrainerDesired) -> None:
    record = NodeDesired(node="n0", trainers=trainers, code=code, code_from=site.url)
    store.put(keys.desired("n0", RUN), encode(record))


def lies(store: Store, code: CodeVersion, node: str = "n0") -> bool:
    seen = observed(store, node)
    return seen is not None and code.version in (seen.codes or ())


def error(store: Store, node: str = "n0") -> str:
    seen = observed(store, node)
    return seen.code_error if seen is not None else ""


def warmed(node: Node) -> int:
    """How often the warm process has become ready."""
    return sum(x["event"] == "warm" and x["state"] == "ready" for x in node.history())


def spawned(node: Node, *names: str) -> list[bool]:
    return [x.get("warm") for x in node.history() if x["event"] == "spawned" and x["name"] in names]


def tree(node: Node, code: CodeVersion) -> Path:
    return node.folder / "code" / code.version[:DIGITS]


def test_the_warm_process_is_renewed_before_the_start_and_a_start_that_is_faster_is_cold(
    nodes: Nodes, store: Store, site: CodeSite, tmp_path: Path
) -> None:
    one, folder = synced(site, tmp_path / "code", "V = 1"), tmp_path / "code"
    node = nodes.start()
    eventually(node.warm_ready, 15)
    desire(store, site, one)
    eventually(lambda: lies(store, one), 15, "it comes before any start")
    eventually(lambda: warmed(node) == 2, 15, "the warm process begins again with it")
    env = EnvSpec(directory=str(folder / "sub"))
    desire(store, site, one, trainer(code=one))
    first = running(store, node, 1)
    assert spawned(node, FIRST) == [True]
    assert environment.of_process(first)["PYTHONPATH"].split(":")[0] == str(tree(node, one))

    two = synced(site, folder, "V = 2")
    desire(store, site, two, trainer(code=one))
    eventually(lambda: warmed(node) == 3, 15, "it is renewed while the rank runs")
    desire(store, site, two, trainer(generation=2, code=two))
    second = running(store, node, 2)
    assert spawned(node, SECOND) == [True]
    assert environment.of_process(second)["PYTHONPATH"].split(":")[0] == str(tree(node, two))

    three = synced(site, folder, "V = 3")
    desire(store, site, three, trainer(generation=2, code=two), trainer(generation=3, code=three, env=env))
    third = running(store, node, 3)
    assert environment.of_process(third)["PYTHONPATH"].split(":")[0] == str(tree(node, three)), "never an older one"
    assert Path(f"/proc/{third}/cwd").resolve() == (tree(node, three) / "sub").resolve(), "it stands for the folder"


def test_a_spare_has_its_warm_process_build_the_start_of_any_group(
    nodes: Nodes, store: Store, site: CodeSite, tmp_path: Path
) -> None:
    one, node = synced(site, tmp_path / "code", "V = 1"), nodes.start()
    eventually(node.warm_ready, 15)

    def told(what: str = "ahead") -> list[str]:
        lines = (node.folder / "warm.log").read_text().splitlines()
        return [line.removeprefix(f"{what}: ") for line in lines if line.startswith(f"{what}:")]

    def desire_spare(**fields: Any) -> None:
        store.put(keys.desired("n0", RUN), encode(NodeDesired(node="n0", **fields)))

    start = replace(trainer(), generation=0, hold=True, standby="built", env=EnvSpec(set={"MINE": "1"}))
    desire_spare(standby=start)
    first = eventually(
        lambda: told()[-1] if told() else "", 15, "the warm process knows the start, in that start's environment"
    )
    launch = decode(first, TrainerLaunch)
    assert (launch.run, launch.generation, launch.node, launch.standby) == (RUN, 0, "n0", True)
    assert environment.of_process(node.pid("warm"))["MINE"] == "1"
    assert not any(x["event"] == "spawned" and x["name"].startswith("toy.") for x in node.history()), "nothing starts"
    kill(node.pid("warm"))
    count = len(told())
    eventually(lambda: told()[count:] == [first], 15, "the process that follows builds it again")
    desire_spare(standby=start, code=one, code_from=site.url)
    eventually(lambda: len(told()) > count + 1, 15, "and so does the one with other code")
    count = len(told())
    desire_spare(trainers=(trainer(code=one, env=start.env),), code=one, code_from=site.url)
    rank = running(store, node, 1)
    assert spawned(node, FIRST) == [True]
    assert told()[count:] == [], "a start does not end what was built for it"
    kill(node.pid("warm"))
    before = warmed(node)
    eventually(lambda: warmed(node) > before, 15, "another warm process is ready")
    assert told()[count:] == [], "a node that trains is no spare"
    file = str(node.folder / "ranks" / FIRST / "launch.json")
    eventually(lambda: [file, rank] in json.loads(told("runs")[-1]), 15, "it builds the next start of what runs there")
    desire_spare(standby=start, code=one, code_from=site.url)
    eventually(lambda: len(told()) > count, 15, "the group has left it")
    desire_spare()
    eventually(lambda: told()[-1] == "", 15, "the run needs it no more")
    desire_spare(standby=start, code=one, code_from=site.url)
    eventually(lambda: told()[-1] != "", 15, "it is needed again")
    kill(node.pid("agent"))  # the next one has not asked for it
    desire_spare()
    eventually(lambda: told()[-1] == "", 15, "it withdraws it too")


def test_a_fetch_that_fails_is_told_tried_again_and_ends_nothing(
    nodes: Nodes, store: Store, site: CodeSite, tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    one = synced(site, folder, "V = 1")
    node = nodes.cold()
    desire(store, site, one, trainer(code=one))
    pid = running(store, node, 1)
    two = synced(site, folder, "V = 2")
    lost = next(path for path in site.blobs if path.read_bytes() == b"V = 2")
    kept = lost.rename(tmp_path / "kept")
    desire(store, site, two, trainer(code=one))
    eventually(lambda: "run `supervisor sync` again" in error(store), 15, "it says why")
    assert error(store).startswith(f"code {two.version[:12]}: the supervisor at {site.url.rstrip('/')} says: ")
    assert running(store, node, 1) == pid
    kept.rename(lost)
    eventually(lambda: lies(store, two) and not error(store), 30, "it tries again by itself")


def test_an_agent_that_is_killed_finds_what_lies_there(
    nodes: Nodes, store: Store, site: CodeSite, tmp_path: Path
) -> None:
    one = synced(site, tmp_path / "code", "V = 1")
    node = nodes.cold()
    desire(store, site, one)
    eventually(lambda: lies(store, one), 15)
    site.server.code = None  # nothing can be fetched any more
    agent = node.pid("agent")
    kill(agent)
    eventually(lambda: node.pid("agent") not in (0, agent), 15)
    desire(store, site, one, trainer(code=one))
    pid = running(store, node, 1, deadline_s=30)
    assert environment.of_process(pid)["PYTHONPATH"].split(":")[0] == str(tree(node, one))


def test_a_rank_that_has_written_into_its_tree_keeps_it_under_the_next_agent(
    nodes: Nodes, store: Store, site: CodeSite, tmp_path: Path
) -> None:
    one = synced(site, tmp_path / "code", "V = 1")
    node = nodes.cold()
    desire(store, site, one, trainer(code=one))
    pid = running(store, node, 1)
    file = tree(node, one) / "mine.py"
    file.chmod(0o600)
    file.write_text("V = 2")
    site.server.code = None  # nothing can be fetched any more
    before = observed(store, "n0")
    kill(agent := node.pid("agent"))

    def reports() -> bool:
        now = observed(store, "n0")
        return node.pid("agent") not in (0, agent) and now is not None and now != before and lies(store, one)

    eventually(reports, 30, "the next agent has looked")
    assert (file.read_text(), running(store, node, 1)) == ("V = 2", pid)


def test_a_leader_without_the_bytes_gets_them_from_a_node_for_the_next_one(
    nodes: Nodes, store: Store, site: CodeSite, tmp_path: Path
) -> None:
    one = synced(site, tmp_path / "code", "V = 1")
    nodes.cold()
    desire(store, site, one)
    eventually(lambda: lies(store, one), 15, "the first node has it")
    with code_site(tmp_path / "other") as leads:
        leads.page.codes = frozenset({one.version})
        nodes.cold("n1")
        record = NodeDesired(node="n1", code=one, code_from=leads.url)
        store.put(keys.desired("n1", RUN), encode(record))
        eventually(lambda: "run `supervisor sync` again" in error(store, "n1"), 15, "the next node finds nothing there")
        desire(store, leads, one)
        eventually(lambda: lies(store, one, "n1"), 30, "another leads, and gets it from the first")
        assert len(leads.blobs) == len(site.blobs) == 2
