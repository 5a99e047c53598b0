"""Being told when a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


def when_imported(name: str, callback: Callback) -> None:
    """Call ``callback`` with module ``name`` right after it was executed; now, if it was already.

    Args:
        name: full name of the module.
        callback: must not raise.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    _finder.waiting.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(MetaPathFinder):
    """Finds nothing itself: it has the modules that are waited for report when they are executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec the other finders give, with a loader that reports."""
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                self._report_execution(spec)
                return spec
        return None

    def _report_execution(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader is as it was
            execute(module)
            for callback in self.waiting.pop(spec.name, ()):
                callback(module)

        loader.exec_module = exec_module


_finder = _Finder()
