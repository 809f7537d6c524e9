"""An installation for a login node: the base dependencies alone, without torch and all that a node needs."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from supervisor.wire import version

REPOSITORY = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
IMPORTS = """
import importlib, pkgutil, supervisor
for found in pkgutil.walk_packages(supervisor.__path__, "supervisor."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0]


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """Distributions that pip would install for these requirements, as far as they are here."""
    found: dict[str, Distribution] = {}
    todo = [name_of(requirement) for requirement in requirements]
    while todo:
        name = todo.pop()
        if name.lower() in found:
            continue
        try:
            found[name.lower()] = distribution(name)
        except PackageNotFoundError:
            continue  # of another Python or platform
        todo += [name_of(r) for r in found[name.lower()].requires or () if "extra ==" not in r]
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that sees the base dependencies alone."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "everstep.pth").write_text(f"{REPOSITORY}\n")
    for of in closure(PROJECT["dependencies"]).values():
        for file in of.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__", "bin") and not (site / top).exists():
                (site / top).symlink_to(Path(str(of.locate_file(top))))
    info = site / "everstep-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: everstep\nVersion: {PROJECT['version']}\n")
    points = PROJECT["entry-points"]["supervisor.commands"]
    lines = [f"{name} = {where}" for name, where in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[supervisor.commands]", *lines, ""]))
    return folder / "bin" / "python"


def runs(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    done = subprocess.run([str(python), *arguments], env=env, capture_output=True, text=True, timeout=100)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_supervisor_imports_nothing_that_only_a_node_has(python: Path) -> None:
    assert runs(python, "-c", "import importlib.util; print(importlib.util.find_spec('torch'))").stdout == "None\n"
    done = runs(python, "-c", IMPORTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["supervisor", "--help"], 0, ""),
        (["supervisor", "chaos", "--help"], 0, ""),
        (
            ["supervisor", "chaos", "run", "--home", "{}"],
            2,
            "needs jinja2, which is not installed: pip install 'everstep[demo]'",
        ),
        (["supervisor", "up", "--home", "{}"], 1, "cannot run here: torch is not installed: pip install 'everstep[tr"),
        (["supervisor", "demo", "--home", "{}"], 1, "cannot be done here: torch is not installed: pip install 'eve"),
        (["agents.cli", "--help"], 0, ""),
        (
            ["agents.cli", "run", "--node=n", "--home={}", "--etcd=127.0.0.1:1"],
            2,
            "a node needs pynvml, which is not installed: pip install 'everstep[trainer]'",
        ),
    ],
    ids=lambda given: " ".join(given[:3]) if isinstance(given, list) else "",
)
def test_each_program_says_what_it_lacks(
    python: Path, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    done = runs(python, "-m", *[argument.format(tmp_path) for argument in arguments])
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_launch_says_that_the_config_was_not_checked(python: Path) -> None:
    done = runs(python, "-m", "supervisor", "launch", "--check", str(REPOSITORY / "examples" / "debug.toml"))
    assert done.returncode == 0, done.stderr
    assert "the config was not checked" in done.stderr
    assert "no torch and no torchft and no torchtitan: install everstep[trainer]" in done.stderr
    assert done.stdout.endswith("is valid, as far as it was checked\n")
    shown = runs(python, "-m", "supervisor", "config", "show", str(REPOSITORY / "examples" / "debug.toml"))
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "the config was not checked" in shown.stderr


def test_the_versions_of_a_start_are_those_of_the_distribution() -> None:
    declared = {name_of(r): r for r in EXTRAS["trainer"]}
    assert {name: declared[name] for name in version.FITS} == {
        name: f"{name}>={least},<{bound}" for name, (least, bound) in version.FITS.items()
    }
    assert version.misfits() == "", "what is installed here"


@pytest.mark.parametrize(
    ("have", "fits"),
    [("0.2", True), ("0.2.7", True), ("0.2.0+cu128", True), ("0.1.9", False), ("0.3.0rc1", False), ("", False)],
)
def test_a_version_fits_within_its_bounds(have: str, fits: bool) -> None:
    why = version.misfit("torchft", have)
    assert (why == "") is fits
    assert fits or why == (
        f"torchft {have} is installed, and only 0.2 to below 0.3 fits: pip install 'everstep[trainer]'"
    )


def test_a_lighthouse_of_another_torchft_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from titan_actor import lighthouse

    monkeypatch.setattr(version, "version_of", lambda name: "0.4.1")
    with pytest.raises(SystemExit, match=r"the lighthouse cannot start: torchft 0\.4\.1 is installed"):
        lighthouse.main(["--min-replicas=1", "--join-timeout-ms=1", "--heartbeat-timeout-ms=1"])
