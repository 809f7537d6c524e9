"""The targets that Prometheus gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from supervisor.core.model.observed import Grant
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.metrics.http_sd import KEPT_S, Kept, known, listed, of_page
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, encode
from tests.unit.shell.records import mirror_of, registration, run_values


def seen() -> Mirror:
    leader = LeaderRecord(host="h1", pid=1, home="/", metrics_port=9100, page="https://10.0.0.5:9100/")
    given = Grant(key="run-a1", state="granted", nodes=("n1", "n2"))
    return mirror_of({
        keys.LEADER: encode(leader),
        **run_values(),
        keys.grant("run", given.key): encode(given),
        **registration("n1", address="10.0.0.11", metrics_port=9000),
        **{f"{key}/x": value for key, value in registration("n1", address="10.9.9.9", metrics_port=22).items()},
        **registration("n2", address="fd00::12", metrics_port=9001),
        **registration("n3", address="10.0.0.13", metrics_port=9002, insecure=True, role="service"),
        **registration("not-given", address="10.9.9.9", metrics_port=22),
        **registration("older", address="10.0.0.14"),
    })  # fmt: skip


def by_instance(found: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {t["labels"]["instance"]: (t["labels"]["__scheme__"], *t["targets"]) for t in found}


def test_the_leader_oneself_and_the_agents_by_their_nodes_names() -> None:
    own = of_page("https://10.0.0.6:9100/", False)
    assert by_instance(listed((own, *known(seen())), tls=True)) == {
        "10.0.0.6:9100": ("https", "10.0.0.6:9100"),
        "10.0.0.5:9100": ("https", "10.0.0.5:9100"),
        "n1": ("https", "10.0.0.11:9000"),
        "n2": ("https", "[fd00::12]:9001"),
        "n3": ("http", "10.0.0.13:9002"),
    }


def test_the_leader_is_told_once() -> None:
    own = of_page("https://10.0.0.5:9100/", False)
    assert len(listed((own, *known(seen())), tls=True)) == 4


def test_an_agent_whose_lease_lapsed_is_asked_for_an_hour() -> None:
    """It may be cut off from etcd alone, and its metrics show that."""
    at = [0.0]
    kept = Kept(lambda: at[0])
    all_of_them = known(seen())
    assert kept(all_of_them) == all_of_them
    (gone,) = [target for target in all_of_them if target.instance == "n2"]
    left = tuple(target for target in all_of_them if target is not gone)
    at[0] = KEPT_S
    assert set(kept(left)) == set(all_of_them)
    moved = replace(gone, address="10.0.0.12:9005")
    assert [t for t in kept((*left, moved)) if t.instance == "n2"] == [moved], "it is back, at another port"
    assert set(kept(left)) == {*left, moved}
    at[0] += KEPT_S + 1
    assert kept(left) == left


def test_without_certificates_all_is_plain() -> None:
    assert {t["labels"]["__scheme__"] for t in listed(known(seen()), tls=False)} == {"http"}


def test_nobody_leads_and_no_node_is_there() -> None:
    assert known(mirror_of({})) == ()
