"""Finds impurities that the import contracts cannot see in the core's code: a clock, I/O, randomness, logging, state
that outlives a call, or an order that depends on string hashes.

Imports are checked against a list of allowed ones, so that a new way to the outside world is refused by default.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ALLOWED_IMPORTS = ("__future__", "collections", "dataclasses", "enum", "math", "re", "typing", "supervisor.core")

FORBIDDEN_NAMES = frozenset(
    [
        "open",
        "print",
        "input",
        "eval",
        "exec",
        "compile",
        "breakpoint",
        "globals",
        "locals",
        "vars",
        "__import__",
        "__builtins__",
        "hash",
        "id",
    ]
)
"""`hash` of a string and `id` differ from one process to the next."""

MUTATORS = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "update",
        "setdefault",
        "popitem",
        "add",
        "discard",
        "appendleft",
        "sort",
        "reverse",
    ]
)

ORDER_FREE = frozenset(["sorted", "set", "frozenset", "any", "all", "len", "min", "max", "sum"])
"""Functions that do not show the order of an iterable (`min` and `max` of distinct keys; sums of whole numbers)."""

ORDERED = frozenset(["list", "tuple", "enumerate", "iter", "next", "map", "filter", "zip", "reversed", "dict"])


@dataclass(frozen=True)
class Impurity:
    """One construct that a pure core may not have."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def check(core: Path) -> list[Impurity]:
    """All impurities of the Python files under a folder."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(core.rglob("*.py"))}
    set_makers = {name for tree in trees.values() for name in _returning_sets(tree)}
    found = []
    for path, tree in trees.items():
        name = str(path.relative_to(core))
        for line, what in sorted(
            [*_imports(tree), *_names(tree), *_state(tree), *_hash_order(tree, set_makers)], key=lambda x: x[0]
        ):
            found.append(Impurity(name, line, what))
    return found


_Finding = tuple[int, str]


def _imports(tree: ast.Module) -> Iterator[_Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            continue
        for module in modules:
            if not any(module == allowed or module.startswith(allowed + ".") for allowed in ALLOWED_IMPORTS):
                yield node.lineno, f"imports {module}"


def _names(tree: ast.Module) -> Iterator[_Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in FORBIDDEN_NAMES:
            yield node.lineno, f"uses {node.id}"
        elif isinstance(node, ast.Attribute) and node.attr in ("__import__", "__globals__", "__builtins__"):
            yield node.lineno, f"uses {node.attr}"


def _state(tree: ast.Module) -> Iterator[_Finding]:
    """State that one call could leave for the next."""
    constants: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                constants.add(target.id)
                if _is_mutable(value) and target.id != target.id.upper():
                    read_only = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Mapping[")
                    if not read_only:
                        yield node.lineno, f"keeps mutable state in the module: {target.id}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield node.lineno, f"{type(node).__name__.lower()} {', '.join(node.names)}"
        elif isinstance(node, ast.FunctionDef):
            for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]:
                if _is_mutable(default):
                    yield default.lineno, f"a mutable default of {node.name} outlives the call"
            for decorator in node.decorator_list:
                if "cache" in ast.unparse(decorator):
                    yield decorator.lineno, f"{node.name} remembers its calls"
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if isinstance(node.value, ast.Name) and node.value.id in constants:
                yield node.lineno, f"changes {node.value.id}"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MUTATORS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in constants
        ):
            yield node.lineno, f"changes {node.func.value.id}"


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("list", "dict", "set", "bytearray", "defaultdict", "Counter", "deque")
    )


def _returning_sets(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _is_set_type(node.returns):
            yield node.name


def _is_set_type(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation).split("[")[0] in (
        "set",
        "frozenset",
        "Set",
        "AbstractSet",
    )


def _hash_order(tree: ast.Module, set_makers: set[str]) -> Iterator[_Finding]:
    """Places where the order of a set could reach a result."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.Module):
            known = _sets_of(scope, set_makers)
            for node in _own_nodes(scope):
                yield from ((node.lineno, what) for what in _shows_order(node, known, set_makers))


def _own_nodes(scope: ast.FunctionDef | ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """The nodes of a function without its inner functions; `taken_by` maps each to the node that takes its value."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.ClassDef):
            continue
        for child in ast.iter_child_nodes(node):
            child.taken_by = node  # type: ignore[attr-defined]
            waiting.append(child)
        if isinstance(node, ast.expr | ast.stmt):
            yield node


def _sets_of(scope: ast.FunctionDef | ast.Module, set_makers: set[str]) -> set[str]:
    known: set[str] = set()
    if isinstance(scope, ast.FunctionDef):
        arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
        known |= {a.arg for a in arguments if _is_set_type(a.annotation)}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and _is_set(node.value, known, set_makers):
            known |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_set_type(node.annotation):
            known.add(node.target.id)
    return known


def _is_set(value: ast.expr, known: set[str], set_makers: set[str]) -> bool:
    if isinstance(value, ast.Set | ast.SetComp):
        return True
    if isinstance(value, ast.Name):
        return value.id in known
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(value.left, known, set_makers) or _is_set(value.right, known, set_makers)
    if isinstance(value, ast.Call):
        function = value.func
        if isinstance(function, ast.Name):
            return function.id in ("set", "frozenset") or function.id in set_makers
        if isinstance(function, ast.Attribute):
            if function.attr in ("union", "intersection", "difference", "symmetric_difference"):
                return True
            return function.attr in set_makers
    return False


def _shows_order(node: ast.expr | ast.stmt, known: set[str], set_makers: set[str]) -> Iterator[str]:
    def is_set(value: ast.expr) -> bool:
        return _is_set(value, known, set_makers)

    if isinstance(node, ast.For) and is_set(node.iter):
        yield f"goes through the set {ast.unparse(node.iter)} in hash order"
    elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        if any(is_set(generator.iter) for generator in node.generators) and not _in_order_free(node):
            yield f"goes through a set in hash order: {ast.unparse(node)}"
    elif isinstance(node, ast.Starred) and is_set(node.value):
        yield f"unpacks the set {ast.unparse(node.value)} in hash order"
    elif isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in ORDERED and any(is_set(a) for a in node.args):
            yield f"{function.id}() of a set is in hash order"
        elif isinstance(function, ast.Attribute):
            if function.attr in ("join", "extend", "fromkeys") and any(is_set(a) for a in node.args):
                yield f"{function.attr}() of a set is in hash order"
            elif function.attr == "pop" and not node.args and is_set(function.value):
                yield f"pop() of the set {ast.unparse(function.value)} is in hash order"


def _in_order_free(node: ast.expr) -> bool:
    taken_by = getattr(node, "taken_by", None)
    return isinstance(taken_by, ast.Call) and isinstance(taken_by.func, ast.Name) and taken_by.func.id in ORDER_FREE
