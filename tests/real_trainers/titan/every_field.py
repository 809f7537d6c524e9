"""Prints the paths of all fields of TorchTitan's configs as JSON, also of those whose packages are not here.

A process of its own: what stands for a missing package would be found by other tests. `met`: paths; `left`: configs that
need a device that is not here, with the error.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

PACKAGES = ("av", "einops", "fla", "PIL", "timm", "torchao", "torchvision", "transformers")
"""Packages that TorchTitan's configs import, for models and data that no field depends on."""


class _Named(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub


class Stub(metaclass=_Named):
    """Stands for any class or function of a missing package."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)


class _Package(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(Stub, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def main() -> None:
    warnings.simplefilter("ignore")
    sys.meta_path.append(_Finder({name for name in PACKAGES if importlib.util.find_spec(name) is None}))
    from tests.real_trainers.titan import test_fields
    from titan_actor import mends
    from titan_actor.overrides import leaves

    mends.apply()
    met: set[str] = set()
    left: dict[str, str] = {}
    for config in test_fields.configs(left):
        met |= {*test_fields.declared(config), *(path for path, _ in leaves(config))}
    json.dump({"met": sorted(met), "left": left}, sys.stdout)


if __name__ == "__main__":
    main()
