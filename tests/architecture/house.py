"""Counts lines, limits and habits of the sources, of a commit and of the work tree, for `benchmarks/results/house.json`:
`python -m tests.architecture.house --against fce8538`.

Product is every Python file outside `tests`, without what protoc generates. `RULES` has the rule of each count."""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fault_injection.sim.lane import commit
from tests.architecture.english import check

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/house.json"

RULES = {
    "lines": "of Python files, blank lines and docstrings too; product is all outside of tests, without *_pb2*.py",
    "complex_functions": "ruff's C901 above 15, in product",
    "wide_functions": "ruff's PLR0913 above 6, in product; options of commands and values of sentences count too",
    "sets_of_kinds": "two kinds of failure or more in one set, list, tuple or table's keys; not the table TRAITS",
    "prose": "==, !=, in, startswith or endswith with a constant in which a letter stands before a space",
    "docstrings_failing": "an opening or a word that tests/architecture/english.py lists",
}
SENTENCE = re.compile(r"[A-Za-z][,:;']? ")
KIND = re.compile(r"(\w+\.)?Kind\.[A-Z_]+")


def count(root: Path) -> dict[str, object]:
    """Returns all counts of the sources in a folder."""
    python = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py")) if "_pb2" not in path.name}
    tests = {name: path for name, path in python.items() if name.startswith("tests/")}
    product = {name: path for name, path in python.items() if name not in tests}
    trees = {name: ast.parse(path.read_text()) for name, path in product.items()}
    ruled = ruff(root, product.values())
    english = sum((check(root / top) for top in {name.partition("/")[0] for name in python}), start=Counter[str]())
    named = constants(trees)
    texts = [f"{name}:{line}" for name, tree in trees.items() for line in branches(tree, Path(name).stem, named)]
    kinds = [f"{name}:{line}" for name, tree in trees.items() for line in sets_of_kinds(tree)]
    return {
        "product_files": len(product),
        "product_lines": sum(map(lines, product.values())),
        "test_files": len(tests),
        "test_lines": sum(map(lines, tests.values())),
        "complex_functions": ruled.count("C901"),
        "wide_functions": ruled.count("PLR0913"),
        "sets_of_kinds": split(kinds),
        "prose": split(texts),
        "docstrings": english["all"],
        "docstrings_failing": english["opening"] + english["word"],
        "readme_lines": lines(root / "README.md"),
        "pages_over_300_lines": sum(lines(path) > 300 for path in root.rglob("*.md")),
        "where": {"sets_of_kinds": kinds, "prose": texts},
    }


def split(places: list[str]) -> dict[str, int]:
    """Counts places in what runs, and in what breaks and measures it."""
    tried = sum(place.startswith(("fault_injection/", "benchmarks/")) for place in places)
    return {"what runs": len(places) - tried, "fault_injection and benchmarks": tried}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def ruff(root: Path, files: Iterable[Path]) -> list[str]:
    """Returns the rule of each finding of the two, exempted or not."""
    limits = ("lint.mccabe.max-complexity=15", "lint.pylint.max-args=6", "target-version='py311'")
    command = ["ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--select=C901,PLR0913"]
    command += ["--output-format=json", *(f"--config={limit}" for limit in limits), *map(str, files)]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True)
    return [finding["code"] for finding in json.loads(found.stdout)]


def sets_of_kinds(tree: ast.Module) -> Iterator[int]:
    """Yields the lines at which two kinds or more stand together."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign | ast.Assign)]
    table = {id(node.value) for node in assigned if ast.unparse(node).startswith("TRAITS")}
    for node in ast.walk(tree):
        listed = getattr(node, "elts", None) or getattr(node, "keys", None) or []
        if id(node) not in table and sum(bool(each and KIND.fullmatch(ast.unparse(each))) for each in listed) > 1:
            yield getattr(node, "lineno", 0)


def constants(trees: Mapping[str, ast.Module]) -> set[str]:
    """Returns the constants that hold prose, as `module.NAME`: by the file's name, and by every file that imports one."""
    found, made = set(), [(Path(path).stem, node) for path, tree in trees.items() for node in tree.body]
    for stem, node in made:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and prose(node.value, stem, set()):
            found.add(f"{stem}.{node.targets[0].id}")
    for stem, node in made:
        if isinstance(node, ast.ImportFrom) and node.module:
            origin = node.module.rpartition(".")[2]
            found |= {f"{stem}.{name.name}" for name in node.names if f"{origin}.{name.name}" in found}
    return found


def branches(tree: ast.Module, stem: str, named: set[str]) -> Iterator[int]:
    """Yields the lines at which a value is compared with prose."""
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
            asked = node.args
        if isinstance(node, ast.expr) and any(prose(each, stem, named) for each in asked):
            yield node.lineno


def prose(node: ast.expr, stem: str, named: set[str]) -> bool:
    """True if a constant, or what a name stands for, holds a sentence or a part of one."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and SENTENCE.search(node.value) is not None
    if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.JoinedStr):
        parts = node.values if isinstance(node, ast.JoinedStr) else node.elts
        return any(prose(each, stem, named) for each in parts)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}" in named
    return isinstance(node, ast.Name) and f"{stem}.{node.id}" in named


def unpacked(pack: str) -> dict[str, object]:
    """Counts the sources that a shell command packs."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(f"{pack} | tar -x -C {folder}", shell=True, cwd=ROOT, check=True)
        return count(Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", default="fce8538", help="the commit to compare with")
    against = parser.parse_args().against
    before, now = unpacked(f"git archive {against}"), unpacked("git ls-files -z | tar --null -T - -c")
    result = {"command": f"python -m tests.architecture.house --against {against}", "rules": RULES}
    result |= {"before": {"commit": against, **before}, "now": {"commit": commit(), **now}}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for name in [name for name in before if name != "where"]:
        print(f"{name:22} {before[name]}  ->  {now[name]}")


if __name__ == "__main__":
    main()
