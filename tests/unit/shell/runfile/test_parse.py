"""A mistake in a run file stops the start, with the key, the value and the nearest right one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.spec import KEYS, RunSpec
from supervisor.shell.runfile import parse as runfile
from supervisor.shell.runfile.parse import RunFileError, parse
from supervisor.wire import tables


def problems(body: dict[str, Any]) -> list[str]:
    with pytest.raises(RunFileError) as error:
        parse({"name": "run", **body})
    return error.value.problems


def only(body: dict[str, Any]) -> str:
    found = problems(body)
    assert len(found) == 1, found
    return found[0]


def test_a_name_is_enough() -> None:
    assert parse({"name": "run"}) == RunSpec(name="run")


def test_every_section_is_taken() -> None:
    spec = parse(
        {
            "name": "run",
            "groups": {"count": 3},
            "allocation": {"nodes": 3, "spares": 2},
            "titan": {"steps": 7, "overrides": {"optimizer.lr": 0.1}, "data": {"text_field": "body"}},
            "torchft": {"quorum_timeout_ms": 60000, "quorum_retries": 10},
            "policy": {"silent_timeout_s": 7.5, "budget": {"restart": 9, "window_s": 60}},
        }
    )
    assert (spec.groups.count, spec.allocation.spares, spec.titan.steps) == (3, 2, 7)
    assert (spec.titan.overrides, spec.titan.data.text_field) == ({"optimizer.lr": 0.1}, "body")
    assert (spec.policy.silent_timeout_s, spec.policy.budget.restart) == (7.5, 9)
    assert spec.policy.budget.window_s == 60.0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"gruops": {"count": 2}}, "gruops = {'count': 2}: there is no such key; nearest: groups"),
        ({"groups": {"cuont": 2}}, "groups.cuont = 2: there is no such key; nearest: groups.count"),
        ({"steps": 5}, "steps = 5: there is no such key; nearest: titan.steps"),
        (
            {"policy": {"restart": 5}},
            "policy.restart = 5: there is no such key; nearest: policy.budget.restart",
        ),
        (
            {"policy": {"budget": {"restarts": 5}}},
            "policy.budget.restarts = 5: there is no such key; nearest: policy.budget.restart",
        ),
        (
            {"policy": {"first_rung": {"hng": "restart"}}},
            "policy.first_rung.hng = 'restart': there is no such key; nearest: policy.first_rung.hang",
        ),
        (
            {"policy": {"first_rung": {"same_error": "restart"}}},
            "policy.first_rung.same_error = 'restart': same_error is always stop: the same error comes back wherever it is started: starting it again would end the same way",
        ),
        (
            {"groups": {"zzzzzz": 2}},
            "groups.zzzzzz = 2: there is no such key; known here: count, min_groups, nodes_per_group, ranks_per_group, ranks_per_node",
        ),
    ],
)
def test_an_unknown_key_names_the_nearest(body: dict[str, Any], expected: str) -> None:
    assert only(body) == expected


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ({"groups": {"count": "two"}}, ("groups.count = 'two' (str)", "integer")),
        ({"groups": {"count": 2.5}}, ("groups.count = 2.5 (float)", "integer")),
        ({"groups": {"count": True}}, ("groups.count = True (bool)", "integer")),
        ({"groups": 3}, ("groups = 3 (int)",)),
        (
            {"policy": {"webhook_file": "hook"}},
            ("policy.webhook_file = 'hook'", "give the absolute path of a file with the URL"),
        ),
        ({"policy": {"silent_timeout_s": "30"}}, ("policy.silent_timeout_s = '30' (str)", "number")),
        ({"titan": {"recipe": 5}}, ("titan.recipe = 5 (int)", "string")),
        ({"titan": {"overrides": [1]}}, ("titan.overrides = [1] (list)",)),
        (
            {"titan": {"data": {"source": "foldr"}}},
            ("titan.data.source = 'foldr'", "'folder' or 'tokens'", "nearest: 'folder'"),
        ),
        ({"policy": {"kind_budget": {"crash": "two"}}}, ("policy.kind_budget.crash = 'two' (str)", "integer")),
        (
            {"policy": {"first_rung": {"crash": "replce"}}},
            (
                "policy.first_rung.crash = 'replce'",
                "'restart', 'replace', 'reallocate' or 'stop'",
                "nearest: 'replace'",
            ),
        ),
        (
            {"policy": {"first_rung": {"node_lost": "restart"}}},
            ("policy.first_rung.node_lost = 'restart'", "'replace', 'reallocate' or 'stop'"),
        ),
        (
            {"policy": {"first_rung": {"allocation_lost": "replace"}}},
            ("policy.first_rung.allocation_lost = 'replace'", "'reallocate' or 'stop'"),
        ),
        ({"allocation": {"engine": "slurn"}}, ("allocation.engine = 'slurn'", "'local'")),
    ],
)
def test_a_wrong_type_names_key_value_and_type(body: dict[str, Any], parts: tuple[str, ...]) -> None:
    sentence = only(body)
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize("key", sorted(runfile._AT_LEAST))
def test_every_range_is_checked(key: str) -> None:
    least = runfile._AT_LEAST[key]
    *path, last = key.split(".")
    body: dict[str, Any] = {}
    inner = body
    for part in path:
        inner = inner.setdefault(part, {})
    inner[last] = least - 1 if least == int(least) else least / 2
    assert f"{key} = {least - 1:g}: must be at least {least:g}" in problems(body)


@pytest.mark.parametrize(("share", "fits"), [(0.0, False), (0.01, True), (1.0, True), (1.01, False), (20, False)])
def test_a_share_is_above_nothing_and_at_most_all(share: float, fits: bool) -> None:
    """20 is meant as a percentage, and would never hold anything."""
    said = f"policy.breaker.share = {share:g}: a share of the run's nodes, above 0 and at most 1, as 0.2 for a fifth"
    if fits:
        assert parse({"name": "run", "policy": {"breaker": {"share": share}}}).policy.breaker.share == share
    else:
        assert problems({"policy": {"breaker": {"share": share}}}) == [said]


@pytest.mark.parametrize("share", [-0.1, math.nan, math.inf])
def test_what_is_no_share_at_all_is_said_once(share: float) -> None:
    assert only({"policy": {"breaker": {"share": share}}}).startswith("policy.breaker.share = ")


def test_every_number_has_a_range() -> None:
    """A key that is added without one would let a typo start a run."""
    numbers = {
        key
        for key in tables.all_keys()
        if isinstance(_default(key), int | float) and not isinstance(_default(key), bool)
    }
    assert numbers - {"titan.seed"} == set(runfile._AT_LEAST)


def _default(key: str) -> Any:
    value: Any = RunSpec(name="run")
    names = {key: name for name, key in KEYS.items()}
    for part in key.split("."):
        value = getattr(value, names.get(part, part))
    return value


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ({"groups": {"min_groups": 3}}, ("groups.min_groups = 3", "groups.count = 2")),
        ({"groups": {"count": 4}}, ("allocation.nodes = 2", "groups.count = 4", "at least 4")),
        (
            {"torchft": {"heartbeat_timeout_ms": 6000}},
            ("torchft.join_timeout_ms = 5000 is below 6001 ms", "above torchft.heartbeat_timeout_ms = 6000"),
        ),
        (
            {"torchft": {"process_group_timeout_ms": 900}},
            (
                "torchft.process_group_timeout_ms = 900 is below 1001 ms",
                "above torchft.heartbeat_timeout_ms = 1000",
                "at least 1001",
            ),
        ),
        (
            {"torchft": {"process_group_timeout_ms": 20_000, "quorum_timeout_ms": 18_000, "quorum_retries": 1}},
            ("torchft.quorum_timeout_ms = 18000 is below 20001 ms: torchft.process_group_timeout_ms = 20000", "20001"),
        ),
        (
            {"torchft": {"quorum_retries": 100_000}},
            ("torchft.quorum_retries = 100000", "18 ms", "at most 17999"),
        ),
        (
            {"policy": {"backoff_first_s": 90.0}},
            ("policy.backoff_first_s = 90", "policy.backoff_max_s = 60"),
        ),
        ({"policy": {"observe": ["hangs"]}}, ("policy.observe: 'hangs'", "nearest: 'hang'")),
        (
            {"policy": {"kind_budget": {"crsh": 2}}},
            ("policy.kind_budget.crsh: there is no such kind", "nearest: 'crash'"),
        ),
        ({"policy": {"kind_budget": {"crash": 0}}}, ("kind_budget.crash = 0: must be at least 1", "first_rung.crash")),
        ({"policy": {"kind_budget": {"same_error": 2}}}, ("policy.kind_budget.same_error", "is always stop")),
        (
            {"policy": {"kind_backoff_s": {"hang": 90}}},
            ("policy.kind_backoff_s.hang = 90 is above", "backoff_max_s = 60"),
        ),
        ({"policy": {"kind_backoff_s": {"hang": -1}}}, ("policy.kind_backoff_s.hang = -1: must be", "at least 0")),
        ({"policy": {"observe": ["requested"]}}, ("policy.observe: 'requested'", "can be only observed")),
        (
            {"policy": {"hang": {"at_least_s": 14.0}}},
            ("policy.hang.at_least_s = 14 is below 15 s", "process_group_timeout_ms", "at least 15"),
        ),
        (
            {"policy": {"hang": {"at_least_s": 50.0, "at_most_s": 40.0}}},
            ("policy.hang.at_least_s = 50", "policy.hang.at_most_s = 40"),
        ),
        ({"titan": {"data": {"source": "folder"}}}, ('titan.data.path = ""', "needs the path")),
        ({"titan": {"data": {"source": "tokens"}}}, ('titan.data.path = ""', "needs the folder of a store, which")),
        ({"titan": {"shrunk_lr": "scaled"}}, ("titan.shrunk_lr: has no effect without titan.data.source =",)),
        (
            {"titan": {"max_accumulation": -1, "data": {"source": "tokens", "path": "/s"}}},
            ("titan.max_accumulation = -1",),
        ),
    ],
)
def test_what_cannot_work_together_is_refused(body: dict[str, Any], parts: tuple[str, ...]) -> None:
    sentence = only(body)
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("my run", "my-run"),
        ("läuft_1", "l-uft-1"),
        ("-x-", "x"),
        ("", "my-run"),
        ("a/b", "a-b"),
        ("../up", "up"),
        ("x" * 64, "x" * 63),
        ("run\n", "run"),
    ],
)
def test_a_bad_name_offers_a_good_one(name: str, nearest: str) -> None:
    with pytest.raises(RunFileError) as error:
        parse({"name": name})
    assert f"nearest: {nearest!r}" in error.value.problems[0]
    assert parse({"name": nearest}).name == nearest


def test_a_missing_name_is_said_plainly() -> None:
    with pytest.raises(RunFileError) as error:
        parse({})
    assert error.value.problems == ["name: missing, and it has no default"]


def test_all_problems_are_told_at_once() -> None:
    found = problems(
        {"name": "a b", "gruops": {}, "groups": {"cuont": 1, "min_groups": 9}, "policy": {"term_grace_s": -1}}
    )
    assert len(found) == 5
    for part in ("gruops", "groups.cuont", "name = 'a b'", "groups.min_groups = 9", "policy.term_grace_s = -1"):
        assert any(part in sentence for sentence in found), part


def test_wrong_types_and_unknown_keys_are_told_together() -> None:
    found = problems({"steps": 5, "groups": {"count": "two"}, "policy": {"term_grace_s": "x"}})
    assert len(found) == 3


def test_a_data_path_is_taken_from_the_folder_of_the_run_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "run.toml"
    file.parent.mkdir()
    file.write_text('name = "run"\n[titan.data]\nsource = "folder"\npath = "../texts"\n')
    assert runfile.load(file).titan.data.path == str(tmp_path / "texts")


def test_an_absolute_data_path_stays(tmp_path: Path) -> None:
    body = {"name": "run", "titan": {"data": {"source": "folder", "path": "/texts"}}}
    assert parse(body, base=tmp_path).titan.data.path == "/texts"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read the run file"),
        (b"name = ", "is not valid TOML"),
        (b"name = " + b"9" * 5000, "is not valid TOML"),
        (b"name = " + b"[" * 200_000, "is not valid TOML"),
        (b'name = "run"\nname = "run"\n', "is not valid TOML"),
        (b'name = "\xff"', "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "run.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RunFileError) as error:
        runfile.load(file)
    (sentence,) = error.value.problems
    assert says in sentence
    assert str(file) in sentence


@pytest.mark.parametrize("value", ["2020-01-01", "10:00:00", "nan", "inf", "-inf"])
def test_toml_values_that_json_lacks_are_refused_too(tmp_path: Path, value: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'name = "run"\n[policy]\nsilent_timeout_s = {value}\n')
    with pytest.raises(RunFileError) as error:
        runfile.load(file)
    assert "policy.silent_timeout_s" in error.value.problems[0]


@pytest.mark.parametrize(
    ("groups", "nodes", "expected"),
    [
        (
            {"nodes_per_group": 2, "ranks_per_node": 4, "ranks_per_group": 4},
            4,
            "groups.ranks_per_group = 4 is not groups.nodes_per_group x groups.ranks_per_node = 2 x 4 = 8: leave it out",
        ),
        (
            {"nodes_per_group": 2, "ranks_per_group": 3},
            4,
            "groups.ranks_per_group = 3 cannot be shared out over groups.nodes_per_group = 2: a multiple of 2, or give groups.ranks_per_node",
        ),
        (
            {"nodes_per_group": 33},
            66,
            "groups.nodes_per_group = 33: at most 32, since what is decided about a group must fit into one transaction of etcd",
        ),
        (
            {"nodes_per_group": 2},
            3,
            "allocation.nodes = 3 is fewer than groups.count x groups.nodes_per_group = 4: each group needs 2 nodes, at least 4",
        ),
    ],
)
def test_nodes_and_ranks_that_contradict_are_refused(groups: dict[str, Any], nodes: int, expected: str) -> None:
    assert only({"groups": groups, "allocation": {"nodes": nodes}}) == expected


def test_ranks_of_a_group_follow_from_those_of_a_node() -> None:
    body = {"name": "run", "groups": {"nodes_per_group": 2, "ranks_per_node": 4}, "allocation": {"nodes": 4}}
    assert (parse(body).groups.ranks_per_group, parse(body).groups.slots) == (8, 4)
