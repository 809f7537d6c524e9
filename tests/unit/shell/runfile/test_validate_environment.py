"""The sentences that refuse a wrong [env] or [hooks]."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core.model.spec import EnvSpec, HooksSpec
from supervisor.shell.runfile import parse
from supervisor.wire import environment


def refused(**tables: Any) -> str:
    with pytest.raises(parse.RunFileError) as found:
        parse.parse({"name": "run", **tables})
    (problem,) = found.value.problems
    return problem


def test_the_tables_are_read_and_written_under_their_own_keys() -> None:
    env = {
        "set": {"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false"},
        "files": {"HF_TOKEN": "/secrets/hf"},
        "pass": ["WANDB_*"],
        "unset": ["NCCL_IB_HCA"],
        "directory": "/work",
    }
    hooks = {"before": ["/stage.sh", "x"], "after": ["/clean.sh"], "timeout_s": 20.0}
    spec = parse.parse({"name": "run", "env": env, "hooks": hooks})
    assert spec.env == EnvSpec(
        set=env["set"], files=env["files"], pass_=("WANDB_*",), unset=("NCCL_IB_HCA",), directory="/work"
    )
    assert spec.hooks == HooksSpec(before=("/stage.sh", "x"), after=("/clean.sh",), timeout_s=20.0)
    assert parse.parse(parse.document(spec)) == spec


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "MY_SECRET", "SSH_KEY"])
def test_a_secret_is_refused_with_the_way_out(name: str) -> None:
    problem = refused(env={"set": {name: "x7x7"}})
    assert problem.startswith(f"env.set.{name}: ")
    assert f"env.files.{name}" in problem
    assert "x7x7" not in problem


@pytest.mark.parametrize(
    "name",
    ["RANK", "MASTER_ADDR", "TORCHFT_LIGHTHOUSE", "SUPERVISOR_SHIM_PID", "EVERSTEP_RUN"],
)
def test_what_everstep_sets_is_refused_with_the_reason(name: str) -> None:
    why = environment.refused(name)
    assert why
    assert refused(env={"set": {name: "1"}}) == f"env.set.{name}: Everstep decides this variable ({why}): remove it"
    assert refused(env={"unset": [name]}) == f"env.unset: {name!r}: Everstep decides this variable ({why}): remove it"
    assert name in refused(env={"files": {name: "/x"}})


@pytest.mark.parametrize(
    "name", ["TORCHFT_USE_OTEL", "NCCL_SOCKET_IFNAME", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD", "http_proxy"]
)
def test_what_a_user_may_want_is_not(name: str) -> None:
    assert parse.parse({"name": "run", "env": {"set": {name: "1"}}}).env.set == {name: "1"}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"network": {"interface": "ib0", "address": "10.0.0.0/8"}},
            "network.interface and network.address both choose",
        ),
        ({"network": {"interface": "ib 0"}}, "network.interface = 'ib 0': the name of an interface has up to 15"),
        ({"network": {"address": "ten/8"}}, "network.address = 'ten/8': give a network with its length"),
        ({"env": {"set": {"A-B": "1"}}}, "env.set.A-B: a variable's name is"),
        ({"env": {"set": {"A": "1"}, "unset": ["A"]}}, "env.set.A: it is in env.unset too"),
        ({"env": {"set": {"A": "1"}, "files": {"A": "/x"}}}, "env.set.A: it is in env.files too"),
        ({"env": {"set": {"A": 1}}}, "env.set.A = 1 (int): must be a valid string"),
        ({"env": {"files": {"A": "x"}}}, "env.files.A = 'x': give the absolute path"),
        ({"env": {"pass": ["*"]}}, "env.pass: '*': a variable's name is"),
        ({"env": {"pass": "A"}}, "env.pass = 'A' (str): must be a valid"),
        ({"env": {"pas": ["A"]}}, "env.pas = ['A']: there is no such key; nearest: env.pass"),
        ({"env": {"directory": "work"}}, "env.directory = 'work': give the absolute path"),
        ({"hooks": {"before": [""]}}, "hooks.before: the command is empty"),
        ({"hooks": {"before": ["/x"], "timeout_s": 300.0}}, "hooks.timeout_s = 300: must be below policy.start_time"),
    ],
)
def test_what_is_wrong_is_named(tables: dict[str, Any], said: str) -> None:
    assert refused(**tables).startswith(said)


def test_a_list_passes_what_it_names_and_what_a_process_cannot_do_without() -> None:
    has = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "WANDB_MODE": "offline",
        "OTHER": "1",
        "SUPERVISOR_SHIM_PID": "7",
    }
    given = {"NCCL_DEBUG": "INFO"}
    assert environment.of_rank(has, given) == {**has, **given}
    assert environment.of_rank(has, given, ["WANDB_*"]) == {n: v for n, v in has.items() if n != "OTHER"} | given
    assert environment.of_rank(has, {}, unset=["WANDB_*", "OTHER"]).keys() == has.keys() - {"WANDB_MODE", "OTHER"}
    proxied = environment.of_rank(has, {"http_proxy": "http://p:1"}, near=["10.1.2.3"])
    assert "10.1.2.3" in proxied["no_proxy"], "no other node is reached through a proxy that a run file sets"
