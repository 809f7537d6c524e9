"""One row an engine: in the core, and in the shell. A new engine, rehearsed (CONTRIBUTING.md, "Add an engine")."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from supervisor.core.model.engines import TRAITS, EngineName
from supervisor.core.model.spec import AllocationSpec, RunSpec
from supervisor.shell.engines import registry
from supervisor.shell.engines.local import Pool, PoolNode
from tests.helpers.extended import ROOT, Change, patched, told_by

TOY = '''"""Gives nothing."""

from supervisor.ports.engine import Request


class ToyEngine:
    """Implements ports.engine.Engine."""

    name = "toy"
    poll_s = 1.0

    def __init__(self, home, system):
        self.asked = []

    def acquire(self, request):
        self.asked.append(request.key)

    def replace(self, key, request, because):
        self.acquire(request)

    def release(self, key): ...

    def list(self):
        return []

    def events(self, changed): ...

    def knows(self, grant):
        return True
'''

CHANGES = [
    Change("supervisor.shell.engines.toy", "", TOY),
    Change("supervisor.core.model.engines", 'EngineName = Literal["local", ', 'EngineName = Literal["toy", "local", '),
    Change(
        "supervisor.core.model.engines",
        '    "slurm": EngineTraits(',
        '    "toy": EngineTraits(word_s=2.2, warns=False),\n    "slurm": EngineTraits(',
    ),
    Change(
        "supervisor.shell.engines.registry",
        "ENGINES: Mapping[EngineName, Row] = {\n",
        "from supervisor.shell.engines.toy import ToyEngine\n\n"
        "ENGINES: Mapping[EngineName, Row] = {\n"
        '    "toy": Row(build=lambda context: lambda system: ToyEngine(context.home, system)),\n',
    ),
]

SERVED = """
from pathlib import Path
from supervisor.core.model import engines
from supervisor.core.model.memory import AllocationMemory
from supervisor.core.timeouts import solver
from supervisor.shell import service
from supervisor.shell.control.engine_driver import EngineDriver
from supervisor.shell.engines import registry
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.runfile import parse as runfile
from supervisor.wire import keys
from supervisor.wire.records import RunRecord, decode, encode
from fault_injection.doubles.memory_store import MemoryStore
from tests.unit.shell.records import Term

spec = runfile.parse({"name": "run", "allocation": {"engine": "toy"}})
try:
    runfile.parse({"name": "run", "allocation": {"engine": "toi"}})
except runfile.RunFileError as error:
    wrong = error.problems
context = registry.Context(home=Path(), etcd=("e:1",))
built = [engine_of("system") for engine_of in service.registry.built(context)]
store = MemoryStore()
record = RunRecord(spec=spec, run_dir="", launched_unix_s=0.0)
store.put(keys.spec("run"), encode(record))
store.put(keys.allocation("run", "a1"), encode(AllocationMemory(key="a1", state="wanted", since=1.0, reason="the run starts")))
term = Term(store)
for engine in built:
    driver = EngineDriver(store, engine)
    driver.offer(Mirror(store.list(keys.PREFIX)), term)
    driver.attempt()
told = {
    "kept": decode(encode(record), RunRecord) == record,
    "wrong": wrong,
    "word_s": engines.word_s(spec.allocation),
    "timeouts": [row.key for row in solver.rows(spec) if row.key.startswith("allocation.")],
    "before launch": registry.before_launch(spec, context),
    "asked": {engine.name: engine.asked for engine in built if hasattr(engine, "asked")},
}
"""


def test_each_engine_has_its_rows() -> None:
    assert set(get_args(EngineName)) == set(TRAITS) == set(registry.ENGINES)


def test_each_row_builds_the_engine_of_its_name(tmp_path: Path) -> None:
    context = registry.Context(home=tmp_path, etcd=("e:1",))
    names = [engine_of("system").name for engine_of in registry.built(context)]
    assert names == [name for name, row in registry.ENGINES.items() if row.build is not None]


def test_local_nodes_outlast_a_term_and_slurms_do_not(tmp_path: Path) -> None:
    local, slurm = registry.built(registry.Context(home=tmp_path, etcd=("e:1",)))
    assert local("one") is local("another")
    assert slurm("one") is not slurm("another")


def test_a_pool_that_is_too_small_is_said_before_a_launch(tmp_path: Path) -> None:
    context = registry.Context(home=tmp_path, etcd=("e:1",))
    spec = RunSpec(name="run")
    assert registry.before_launch(spec, context) == "", "no pool: the supervisor may be elsewhere"
    Pool(nodes=(PoolNode("n1"), PoolNode("n2")), etcd="e:1", gpus=()).save(tmp_path)
    said = registry.before_launch(spec, context)
    assert said.startswith("nodes in the pool: 2, free: 2, wanted: 3 (2 for groups, 1 more); the run starts without 1")
    small = RunSpec(name="run", allocation=AllocationSpec(nodes=2, spares=0))
    assert registry.before_launch(small, context) == ""


def test_the_shell_asks_no_engines_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "supervisor").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "engine"
        if any(isinstance(each, ast.Constant) and each.value in TRAITS for each in node.comparators)
    ]
    # the part of the run file that is Slurm's own
    assert [each for each in found if not each.startswith("supervisor/shell/engines/slurm/validate.py")] == []


def test_a_new_engine_takes_its_module_and_two_rows(tmp_path: Path) -> None:
    touched = patched(tmp_path, CHANGES)
    assert len(touched) <= 3
    assert told_by(tmp_path, SERVED) == {
        "kept": True,
        "wrong": ["allocation.engine = 'toi': must be 'toy', 'local', 'slurm' or 'pool'; nearest: 'toy'"],
        "word_s": 2.2,
        "timeouts": [],
        "before launch": "",
        "asked": {"toy": ["a1"]},
    }
