"""Patch a framework at its seams: functions and methods that are wrapped by name.

Most frameworks have no hooks for the operations to trace. If an installed version lacks a name, one warning
tells what is not traced; the other seams take effect.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from otel_rollout.base.errors import internal_errors, logger
from otel_rollout.base.patching import Function, Patches, is_replaceable, when_imported
from otel_rollout.record.runs import membership

Table = Mapping[str, tuple[str, ...]]
"""The framework's module → modules of the integration that patch it.

The integration's modules have relative names: ``.tools`` is a module of its package. A module patches by its
functions that are decorated with methods of :class:`Seams`, or by a function ``install(module)``.
"""
Wrapper = Callable[[Function], Any]
Modules = str | Mapping[str, str]
"""The framework's module; or several modules, each with the class whose method is patched."""
Decorator = Callable[[Function], Function]


class Seams:
    """The patches of one framework.

    Args:
        framework: top-level package of the framework.
        package: package of the integration.
    """

    def __init__(self, framework: str, package: str) -> None:
        self.framework = framework
        self._package = package
        self._patches = Patches()
        self._hooks: dict[tuple[str, str], list[Callable[[ModuleType], None]]] = {}
        """(Module of the integration, module of the framework) → functions that patch the latter."""

    @property
    def version(self) -> str:
        """Version of the imported framework, or "of unknown version"."""
        return _version(self.framework)

    def install(self, table: Table, unconfigured: Table) -> None:
        """Patch the modules of the framework, each as soon as it is imported.

        If tracing is configured, also instrument Ray, except in a Ray worker, which its job's setup hook
        instruments.

        Args:
            table: patches for a process in which tracing is configured.
            unconfigured: patches for any other process. If there are none, those of ``table`` wait for
                :func:`otel_rollout.configure`.
        """
        with internal_errors(f"preparing to trace {self.framework}"):
            if unconfigured and not membership.decide().enabled:
                self._await_imports(unconfigured)
            else:
                membership.call_when_enabled(functools.partial(self._install, table))

    @internal_errors("preparing to trace a framework")
    def _install(self, table: Table) -> None:
        self._await_imports(table)
        if not _is_ray_worker():
            from otel_rollout.record.propagation.instrument import instrument

            instrument()

    def _await_imports(self, table: Table) -> None:
        for name, patching in table.items():
            when_imported(name, functools.partial(self.patch, patching))

    def patch(self, patching: tuple[str, ...], module: ModuleType) -> None:
        """Have each of the modules ``patching`` patch ``module``. Never raises."""
        for name in patching:
            with internal_errors(f"patching {module.__name__} of {self.framework} {self.version}"):
                integration = importlib.import_module(name, self._package)
                for attach in self._hooks.get((integration.__name__, module.__name__), ()):
                    attach(module)
                getattr(integration, "install", _nothing)(module)

    def around(self, modules: Modules, path: str, loss: str) -> Decorator:
        """Decorate a function that runs in place of a framework's; see :func:`around`.

        Args:
            modules: the framework's module; or module → class, if several classes have the method.
            path: as for :meth:`wrap`; for several classes the name of the method.
            loss: as for :meth:`wrap`.
        """
        return self._register(modules, path, loss, lambda hook, _: around(hook))

    def before(self, modules: Modules, path: str, loss: str) -> Decorator:
        """Decorate a function that runs before a framework's; see :func:`before`."""
        return self._register(modules, path, loss, before)

    def after(self, modules: Modules, path: str, loss: str) -> Decorator:
        """Decorate a function that runs after a framework's; see :func:`after`."""
        return self._register(modules, path, loss, after)

    def _register(
        self, modules: Modules, path: str, loss: str, make: Callable[[Function, str], Wrapper]
    ) -> Decorator:
        def register(function: Function) -> Function:
            def attach(module: ModuleType) -> None:
                name = path if isinstance(modules, str) else f"{modules[module.__name__]}.{path}"
                self.wrap(module, name, make(function, f"following {module.__name__}.{name}"), loss)

            for module in (modules,) if isinstance(modules, str) else modules:
                self._hooks.setdefault((function.__module__, module), []).append(attach)
            return function

        return register

    def wrap(self, module: ModuleType, path: str, wrapper: Wrapper, loss: str) -> None:
        """Replace a function or method by ``wrapper(original)``.

        A function is also replaced in those modules of the framework that have imported it already.

        Args:
            module: module of the framework.
            path: name of the function, or ``Class.method`` with the class that defines the method.
            wrapper: takes the function and returns its replacement.
            loss: a clause for the warning that tells what is not traced without this name.
        """
        owner: Any = module
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part, None)
        full_name, own = f"{module.__name__}.{path}", getattr(owner, "__dict__", {})
        framework = module.__name__.partition(".")[0]
        if name in own and is_replaceable(owner, name):
            original = own[name]
            self._patches.replace(owner, name, wrapper)
            if owner is module:
                self._replace_imported(original, name, own[name])
        elif name in own:
            _warn(framework, f"{full_name} as {type(own[name]).__name__}, which cannot be wrapped", loss)
        else:
            definer = _definer(owner, name)
            found = f"no {full_name}" if definer is None else f"{full_name} only as a method of {definer}"
            _warn(framework, found, loss)

    def _replace_imported(self, original: Any, name: str, replacement: Any) -> None:
        for module_name, module in list(sys.modules.items()):
            belongs = module_name.partition(".")[0] == self.framework
            if belongs and getattr(module, "__dict__", {}).get(name) is original:
                self._patches.replace(module, name, lambda _: replacement)

    def warn_missing(self, name: str, loss: str) -> None:
        """Warn that the framework lacks ``name``, and tell what is therefore not traced."""
        _warn(self.framework, f"no {name}", loss)


def _version(framework: str) -> str:
    return str(getattr(sys.modules.get(framework), "__version__", "of unknown version"))


def _warn(framework: str, found: str, loss: str) -> None:
    logger.warning(
        "otel-rollout: %s %s has %s, so %s; the rest is traced.", framework, _version(framework), found, loss
    )


def _definer(owner: Any, name: str) -> str | None:
    """Return the name of the class from which a class inherits ``name``; None if there is none."""
    classes = owner.__mro__ if isinstance(owner, type) else ()
    return next((f"{each.__module__}.{each.__qualname__}" for each in classes if name in vars(each)), None)


def _nothing(_: ModuleType) -> None:
    """Do nothing."""


def around(hook: Function) -> Decorator:
    """Return a wrapper that calls ``hook(original, …)`` in place of the function.

    Args:
        hook: gets the function, then its arguments; its result is awaited if either is a coroutine function.
            What it raises reaches the framework.
    """

    def wrapper(original: Function) -> Function:
        if inspect.iscoroutinefunction(original) or inspect.iscoroutinefunction(hook):

            @functools.wraps(original)
            async def call(*args: Any, **kwargs: Any) -> Any:
                return await hook(original, *args, **kwargs)

        else:

            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                return hook(original, *args, **kwargs)

        return call

    return wrapper


def before(observe: Function, doing: str) -> Wrapper:
    """Return a wrapper that calls ``observe(*args, **kwargs)`` before the function.

    Args:
        observe: gets the function's arguments. Its exceptions are logged.
        doing: completes "internal error while …".
    """

    def hook(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        with internal_errors(doing):
            observe(*args, **kwargs)
        return original(*args, **kwargs)

    return around(hook)


def after(observe: Function, doing: str) -> Wrapper:
    """Return a wrapper that calls ``observe(result, …)`` after the function.

    Args:
        observe: gets the function's result, then its arguments. Its exceptions are logged.
        doing: completes "internal error while …".
    """

    def hook(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with internal_errors(doing):
            observe(result, *args, **kwargs)
        return result

    return around(hook)


@dataclass(frozen=True)
class Ended:
    """A call of a function that is over.

    Attributes:
        times: start and end, Unix time in ns.
        result: what the function returned; None after an error.
        error: the exception that it raised; None without one.
    """

    times: tuple[int, int]
    result: Any = None
    error: BaseException | None = None


def timed(observe: Function, doing: str) -> Wrapper:
    """Return a wrapper that calls ``observe(ended, …)`` after the function, also after an exception.

    Args:
        observe: gets an :class:`Ended`, then the function's arguments. Its exceptions are logged.
        doing: completes "internal error while …".
    """

    def hook(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        start_ns = time.time_ns()
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            with internal_errors(doing):
                observe(Ended((start_ns, time.time_ns()), error=error), *args, **kwargs)
            raise
        with internal_errors(doing):
            observe(Ended((start_ns, time.time_ns()), result), *args, **kwargs)
        return result

    return around(hook)


def _is_ray_worker() -> bool:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
