"""The core is pure, the layers hold, and the lints that check this catch a planted violation of each kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import purity

ROOT = Path(__file__).parents[2]
CORE = "supervisor/core"
PACKAGES = ("supervisor", "agents", "titan_actor", "everstep_trainer", "fault_injection", "dashboards", "benchmarks")


def lint_imports(tree: Path) -> tuple[bool, str]:
    """Returns if the import contracts of a tree hold, and the tool's output."""
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"],
        cwd=tree, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(tree)},
    )  # fmt: skip
    assert "Contracts:" in done.stdout, f"lint-imports did not get to its contracts: {done.stdout}{done.stderr}"
    return done.returncode == 0, done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, for planted violations."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    return tmp_path


def plant(tree: Path, file: str, code: str) -> None:
    path = tree / file
    path.write_text(path.read_text() + "\n\n" + code + "\n")


def test_the_core_is_pure() -> None:
    """This is the AST check; the contracts are checked for the whole tree below."""
    found = purity.check(ROOT / CORE)
    assert not found, "\n".join(map(str, found))
    assert len(list((ROOT / CORE).rglob("*.py"))) >= 10, "the check looked at the real core"


def test_the_contracts_hold_here() -> None:
    kept, said = lint_imports(ROOT)
    assert kept, said


IN_A_FUNCTION = "def planted():\n    {}"

PLANTED_IMPORTS = {
    "policy.budgets": ("time", "clock: import time\n\ndef planted():\n    return time.monotonic()"),
    "decide": ("datetime", "clock: def planted():\n    from datetime import datetime\n    return datetime.now()"),
    "evidence.group_failure": (
        "pathlib",
        "I/O: import pathlib\n\ndef planted():\n    return pathlib.Path('x').read_text()",
    ),
    "report.explain": ("socket", "I/O: def planted():\n    import socket\n    return socket.socket()"),
    "invariants": ("random", "randomness: import random\n\ndef planted():\n    return random.random()"),
    "policy.ladder": ("uuid", "randomness: def planted():\n    import uuid\n    return uuid.uuid4()"),
    "model.memory": ("logging", "logging: import logging\n\nlog = logging.getLogger(__name__)"),
    "remediation.placement": (
        "logging",
        "logging: def planted():\n    from logging import getLogger\n    getLogger().info('x')",
    ),
}
"""Files to plant, each on its own: module, its import, and the kind with the code."""


def test_planted_imports_are_caught_by_both_lints(tree: Path) -> None:
    for module, (_, planted) in PLANTED_IMPORTS.items():
        plant(tree, f"{CORE}/{module.replace('.', '/')}.py", planted.split(": ", 1)[1])
    kept, said = lint_imports(tree)
    assert not kept
    assert "the core imports no clock, I/O, randomness or logging BROKEN" in said
    by_ast = {(i.file, i.what) for i in purity.check(tree / CORE)}
    for module, (imported, planted) in PLANTED_IMPORTS.items():
        assert f"supervisor.core.{module} -> {imported} (l." in said, f"{planted}: {said}"
        assert (f"{module.replace('.', '/')}.py", f"imports {imported}") in by_ast, planted


PLANTED_CODE = {
    "an import that no contract names": ("import ctypes", "imports ctypes"),
    "an import by name": (IN_A_FUNCTION.format("return __import__('time').time()"), "uses __import__"),
    "reading a file": (IN_A_FUNCTION.format("return open('/proc/uptime').read()"), "uses open"),
    "printing": (IN_A_FUNCTION.format("print('x')"), "uses print"),
    "asking": (IN_A_FUNCTION.format("return input()"), "uses input"),
    "running text": (IN_A_FUNCTION.format("return eval('1')"), "uses eval"),
    "executing text": (IN_A_FUNCTION.format("exec('import time')"), "uses exec"),
    "an alias of a forbidden name": ("show = print", "uses print"),
    "randomness from hashes": (IN_A_FUNCTION.format("return hash('x')"), "uses hash"),
    "global": ("count = 0\n\ndef planted():\n    global count\n    count += 1", "global count"),
    "module state": ("seen = []", "keeps mutable state in the module: seen"),
    "module state, called a constant": (
        "SEEN = {}\n\ndef planted(key):\n    SEEN[key] = 1",
        "changes SEEN",
    ),
    "a constant that grows": ("SEEN = []\n\ndef planted(key):\n    SEEN.append(key)", "changes SEEN"),
    "a mutable default": ("def planted(seen=[]):\n    return seen", "a mutable default of planted outlives the call"),
    "a cache": ("@cache\ndef planted(x):\n    return x", "planted remembers its calls"),
    "a loop over a set": (
        IN_A_FUNCTION.format("found = set()\n    for x in found:\n        yield x"),
        "goes through the set found in hash order",
    ),
    "a tuple of a set": (IN_A_FUNCTION.format("return tuple({'a', 'b'})"), "tuple() of a set is in hash order"),
    "a list of what a set holds": (
        IN_A_FUNCTION.format("return [x for x in {'a', 'b'}]"),
        "goes through a set in hash order: [x for x in {'a', 'b'}]",
    ),
    "text of a set": (IN_A_FUNCTION.format("return ', '.join({'a', 'b'})"), "join() of a set is in hash order"),
    "any of a set": (IN_A_FUNCTION.format("return {'a', 'b'}.pop()"), "pop() of the set {'a', 'b'} is in hash order"),
    "a set of another function": (
        "def made() -> set[str]:\n    return {'a'}\n\ndef planted():\n    return [*made()]",
        "unpacks the set made() in hash order",
    ),
}


@pytest.mark.parametrize("what", PLANTED_CODE)
def test_planted_code_is_caught_by_the_ast_check(tmp_path: Path, what: str) -> None:
    code, expected = PLANTED_CODE[what]
    text = (ROOT / CORE / "policy/ladder.py").read_text()
    (tmp_path / "ladder.py").write_text(text)
    assert purity.check(tmp_path) == []
    (tmp_path / "ladder.py").write_text(text + "\n\n" + code + "\n")
    assert expected in [i.what for i in purity.check(tmp_path)]


def test_what_hides_a_sets_order_is_let_through(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(
        "def fine(names: set[str]) -> tuple[str, ...]:\n"
        "    if any(n for n in names) and 'x' in names and len(names) == max(len(n) for n in names):\n"
        "        return ()\n"
        "    return tuple(sorted(names | {'x'}))\n"
    )
    assert purity.check(tmp_path) == []


PLANTED_LAYERS = [
    (
        "supervisor/core/remediation/placement.py",
        "from supervisor.shell.control import state_cache as mirror",
        "supervisor.core is not allowed to import supervisor.shell",
        "supervisor.core.remediation.placement -> supervisor.shell.control.state_cache",
    ),
    (
        "supervisor/wire/keys.py",
        "def planted():\n    from supervisor.ports import store\n    return store",
        "supervisor.wire is not allowed to import supervisor.ports",
        "supervisor.wire.keys -> supervisor.ports.store",
    ),
    (
        "agents/agent/names.py",
        "from supervisor.shell.control.loop import Loop",
        "agents is not allowed to import supervisor.shell.control.loop",
        "agents.agent.names -> supervisor.shell.control.loop",
    ),
    (
        "agents/gate/state.py",
        "def planted():\n    from supervisor.core.model import memory\n    return memory",
        "agents is not allowed to import supervisor.core.model.memory",
        "agents.gate.state -> supervisor.core.model.memory",
    ),
    (
        "fault_injection/faults/acts.py",
        "import torch",
        "fault_injection is not allowed to import torch",
        "fault_injection.faults.acts -> torch",
    ),
    (
        "agents/requests/mesh.py",
        "def planted():\n    import monarch.actor",
        "agents is not allowed to import monarch",
        "agents.requests.mesh -> monarch",
    ),
    (
        "supervisor/shell/inspect/logs.py",
        "import agents.health.exit_decoder",
        "supervisor is not allowed to import agents",
        "supervisor.shell.inspect.logs -> agents.health.exit_decoder",
    ),
    (
        "agents/shim/process_table.py",
        "import titan_actor.report",
        "agents is not allowed to import titan_actor",
        "agents.shim.process_table -> titan_actor.report",
    ),
    (
        "titan_actor/cursor.py",
        "from supervisor.shell.runfile import parse as runfile",
        "titan_actor is not allowed to import supervisor.shell",
        "titan_actor.cursor -> supervisor.shell.runfile.parse",
    ),
    (
        "everstep_trainer/__init__.py",
        "import torchtitan",
        "everstep_trainer is not allowed to import torchtitan",
        "everstep_trainer -> torchtitan",
    ),
    (
        "supervisor/shell/dev/prometheus.py",
        "import dashboards.rules",
        "supervisor is not allowed to import dashboards",
        "supervisor.shell.dev.prometheus -> dashboards.rules",
    ),
    (
        "dashboards/expressions.py",
        "import agents.shim.process",
        "dashboards is not allowed to import agents",
        "dashboards.expressions -> agents.shim.process",
    ),
    (
        "fault_injection/testbed/world.py",
        "import benchmarks.decide",
        "fault_injection is not allowed to import benchmarks",
        "fault_injection.testbed.world -> benchmarks.decide",
    ),
    (
        "benchmarks/page.py",
        "from tests.unit.core.world import World",
        "benchmarks is not allowed to import tests",
        "benchmarks.page -> tests",
    ),
    (
        "fault_injection/doubles/toys.py",
        "def planted():\n    import tests.helpers.etcd",
        "fault_injection is not allowed to import tests",
        "fault_injection.doubles.toys -> tests",
    ),
]
"""File, planted code, the rule that it breaks, and the import that the lint must name."""


def test_planted_layer_violations_are_caught(tree: Path) -> None:
    for file, code, _, _ in PLANTED_LAYERS:
        assert (tree / file).exists(), f"{file} is gone: plant it elsewhere"
        plant(tree, file, code)
    kept, said = lint_imports(tree)
    assert not kept
    for file, _, rule, named in PLANTED_LAYERS:
        assert rule in said, f"{file}: {rule}: {said}"
        assert named in said, f"{file}: {named}: {said}"


AGENTS_LOAD = {
    *("supervisor.core.evidence.error_text", "supervisor.core.evidence.xid_catalog", "supervisor.core.report.visible"),
    *("supervisor.core.model.code", "supervisor.core.model.engines"),
    *("supervisor.core.model.kinds", "supervisor.core.model.measured"),
    *("supervisor.core.model.observed", "supervisor.core.model.spec", "supervisor.core.model.stacks"),
    "supervisor.core.goodput.causes",
}
"""All modules of the core that a node's programs load, also by way of others: agents report, and judge nothing."""

LOADED = """
import grimp
graph = grimp.build_graph("supervisor", "agents", cache_dir=None)
sources = [m for m in graph.modules if m.split(".")[0] == "agents"]
found = {loaded for m in sources for loaded in graph.find_upstream_modules(m)}
print(*sorted(m for m in found if m.startswith("supervisor.core.")))
"""


def loaded_of_the_core(tree: Path) -> set[str]:
    """Modules of a tree's core to which the imports of its agents lead."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=tree, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )  # fmt: skip
    return set(done.stdout.split())


def test_agents_load_of_the_core_what_is_listed() -> None:
    assert loaded_of_the_core(ROOT) == AGENTS_LOAD


def test_a_decision_that_agents_would_load_by_way_of_another_module_is_caught(tree: Path) -> None:
    plant(
        tree, "supervisor/shell/metrics/registry.py", "def planted():\n    from supervisor.core.policy import cordons"
    )
    more = loaded_of_the_core(tree) - AGENTS_LOAD
    assert "supervisor.core.policy.cordons" in more
