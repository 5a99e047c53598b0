"""Replace attributes of third-party classes and modules, now or after import, and environment variables."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MethodType, ModuleType
from typing import Any

from otel_rollout.base.errors import internal_errors

Function = Callable[..., Any]
"""A function or method of any kind."""
ImportCallback = Callable[[ModuleType], None]


class Patches:
    """Replace attributes, and restore them later.

    If other code patches an attribute after this class, :meth:`undo` leaves that later patch in place. The
    later patch still calls the replacement, so each replacement checks :attr:`active` before it does any
    work.
    """

    def __init__(self) -> None:
        self.active = True
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by ``make(original)``. Class and static methods stay what they are."""
        original = vars(owner)[name]
        if isinstance(original, (classmethod, staticmethod)):
            replacement: Any = type(original)(make(original.__func__))
        else:
            replacement = make(original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, original, replacement))

    def undo(self) -> None:
        """Restore each attribute that still holds its replacement."""
        self.active = False
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)


def is_replaceable(owner: Any, name: str) -> bool:
    """Return whether callers of ``owner.name`` cannot tell a function in its place from the original.

    They can if the name is no function: a property, a class, or a cached function, which has methods of its
    own. In a class they can, too, if the name is a callable that instances do not bind, such as ``len``.
    """
    found = vars(owner)[name]
    is_bound = isinstance(owner, type)
    if isinstance(found, (classmethod, staticmethod)):
        found, is_bound = found.__func__, isinstance(found, classmethod)
    if not callable(found) or isinstance(found, type) or hasattr(found, "cache_clear"):
        return False
    return not is_bound or (hasattr(type(found), "__get__") and not isinstance(found, MethodType))


@contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def when_imported(name: str, callback: ImportCallback) -> None:
    """Call ``callback(module)`` after module ``name`` has been executed.

    If the module is imported already, ``callback`` is called now. A callback that is already waiting is not
    added again. An exception of ``callback`` is logged once, and the import succeeds. The later import of a
    built-in or frozen module is not noticed.

    Args:
        name: full name of the module.
        callback: receives the module.
    """
    if sys.modules.get(name) is not None:
        _call(callback, importlib.import_module(name))  # waits if another thread is executing the module
        return
    waiting = _reporting_finder().waiting.setdefault(name, [])
    if callback not in waiting:
        waiting.append(callback)


def _reporting_finder() -> ReportingFinder:
    """Return the finder that reports imports; the first call installs it."""
    for finder in sys.meta_path:
        if type(finder) is ReportingFinder:
            return finder
    added = ReportingFinder()
    sys.meta_path.insert(0, added)
    return added


def _call(callback: ImportCallback, module: ModuleType) -> None:
    with internal_errors(f"adding to {module.__name__}"):
        callback(module)


class ReportingFinder(MetaPathFinder):
    """A finder that uses the other finders, and reports when a module has executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[ImportCallback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module with waiting callbacks; None for any other module."""
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
        if not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__") or isinstance(loader, type):
            return  # a loader that cannot be wrapped, or the class that all built-in modules share
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # restore the loader
            execute(module)
            if module.__name__ == spec.name:  # a loader may be shared by several modules
                for callback in self.waiting.pop(spec.name, ()):
                    _call(callback, module)

        loader.exec_module = exec_module
