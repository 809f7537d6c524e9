"""The part of a site's environment that reaches our processes."""

from __future__ import annotations

import urllib.request

import pytest

from supervisor.wire import environment
from supervisor.wire.programs import PART
from tests.helpers.site import OUTER_JOB, PROXY

USERS = {
    "PATH": "/bin",
    "NCCL_DEBUG": "INFO",
    "NCCL_IB_HCA": "mlx5",
    "CUDA_VISIBLE_DEVICES": "0",
    "HF_HOME": "/data/hf",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "4",
    "SLURM_JOB_ID": "7",
    "SUPERVISOR_LOG": "INFO",
    "RANKING": "a name that only begins like one",
    "TORCHFT_USE_OTEL": "true",
}


def test_what_an_outer_job_left_is_removed_and_what_a_user_sets_stays() -> None:
    more = {"TORCHELASTIC_RUN_ID": "x", "TORCHFT_LIGHTHOUSE": "http://other:1", "NCCL_COMM_ID": "other:1"}
    assert environment.decided({**USERS, **OUTER_JOB, **more}) == USERS


def test_a_node_is_given_nothing_of_the_control_plane() -> None:
    ours = {"SUPERVISOR_ETCD": "h:1", "SUPERVISOR_SECURITY": "/s", "SUPERVISOR_CONTROL_PLANE": "{}", PART: "p"}
    ours |= {"SUPERVISOR_ENROLL": "{}"}
    assert environment.of_node({**USERS, **OUTER_JOB, **ours}) == USERS
    assert environment.decided({**USERS, **ours}) == {**USERS, **ours}


def test_an_etcd_is_given_no_flags_by_its_environment() -> None:
    kept = {"PATH": "/bin", "ETCD_UNSUPPORTED_ARCH": "arm64"}
    assert environment.of_etcd({**kept, "ETCD_NAME": "x", "RANK": "3"}) == kept
    assert environment.decided({"ETCD_NAME": "x"}) == {"ETCD_NAME": "x"}


@pytest.mark.parametrize("before", [{}, {"no_proxy": "intern.example"}, {"NO_PROXY": "intern.example, localhost"}])
def test_neither_loopback_nor_a_node_is_reached_through_a_proxy(
    before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = environment.decided({**PROXY, **before}, ["10.1.2.3", "fd00::7"])
    assert {name: decided[name] for name in PROXY} == PROXY, "webhooks go through it"
    for name in (*environment.PROXIES, *environment.NO_PROXY):
        monkeypatch.delenv(name, raising=False)
    for name, value in decided.items():
        monkeypatch.setenv(name, value)
    bypassed = ["127.0.0.1:80", "localhost:80", "[::1]:80", "10.1.2.3:80", "[fd00::7]:80"] + (
        ["intern.example"] if before else []
    )
    assert all(urllib.request.proxy_bypass(host) for host in bypassed), decided
    assert not urllib.request.proxy_bypass("hooks.example:443")
    assert decided["no_proxy"] == decided["NO_PROXY"]
    assert "::1" in decided["no_proxy"].split(",")


def test_without_a_proxy_nothing_is_said_of_one() -> None:
    assert environment.decided(USERS, ["10.1.2.3"]) == USERS


def test_what_is_removed_and_what_looks_harmful_is_found_with_the_reason() -> None:
    of = {**USERS, **OUTER_JOB, "CUDA_LAUNCH_BLOCKING": "1", "LD_PRELOAD": "/x.so"}
    removed = environment.found(of, "removed")
    assert sorted(name for names, _ in removed for name in names) == sorted(OUTER_JOB)
    assert all(rule.why for _, rule in removed)
    assert [names for names, _ in environment.found(of, "harmful")] == [["CUDA_LAUNCH_BLOCKING"], ["LD_PRELOAD"]]
    assert environment.proxies({**PROXY, "https_proxy": ""}) == ["http_proxy", "HTTP_PROXY"]
