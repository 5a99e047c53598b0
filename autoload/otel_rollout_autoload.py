"""Import an integration when its framework is imported, in a process in which tracing is configured.

Ray, TRL, verifiers and vLLM load no plugins of ours, so ``otel_rollout_autoload.pth`` calls :func:`wait` when
the interpreter starts. Python reads that file in the site directory of this module. Neither file imports
anything of the package ``otel_rollout`` before one of these frameworks is used. A program that sets the
variables itself imports the package, which calls :func:`wait`, too.

``ray.init`` is the first use of Ray: Ray's own processes import Ray and do not call it. ``torchrun`` and
``accelerate launch`` start one process per rank, and found the run into which all ranks record.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

INTEGRATIONS = {
    "trl": "otel_rollout.integrations.trl",
    "verifiers": "otel_rollout.integrations.verifiers",
    "vllm": "otel_rollout.integrations.vllm",
}
"""Top-level package of a framework → the module that traces it."""
RAY = "otel_rollout.propagation.instrument"
"""The module that traces Ray."""
LAUNCHERS = {"torch.distributed.run": "otel_rollout"}
"""Module of a launcher → the module that founds the run which the launched processes join."""
DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
"""Variable of OpenTelemetry's zero-code instrumentation: names of frameworks that are left alone."""


def wait() -> None:
    """Wait for the frameworks of ``INTEGRATIONS`` and for Ray; a second call does nothing.

    A framework that is imported already, by another package's file, is not waited for.
    """
    if any(isinstance(finder, Waiting) for finder in sys.meta_path):
        return
    waiting = Waiting()
    sys.meta_path.insert(0, waiting)
    for package in INTEGRATIONS:
        if package in sys.modules:
            waiting.has_imported_integration(package)
    ray = sys.modules.get("ray")
    if hasattr(ray, "init"):
        _prepare_init(ray)


def is_on(framework: str) -> bool:
    """Return whether variables switch tracing on, and do not disable a framework."""
    get = os.environ.get
    exporters = get("OTEL_TRACES_EXPORTER", "").strip().lower() or get("OTEL_ROLLOUT_CONFIG") or "none"
    return (
        exporters != "none"
        and get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
        and framework not in [name.strip() for name in get(DISABLED, "").split(",")]
    )


class Waiting:
    """A finder that finds nothing, and notices imports of frameworks.

    A framework is used from the first import of a submodule: ``importlib.util.find_spec("trl")`` alone
    imports neither.
    """

    def __init__(self) -> None:
        self._waiting = dict(INTEGRATIONS)
        self._asks_others = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import the integration of ``fullname``'s framework, and leave the module to the other finders."""
        # One of the others may ask this one; another library may have wrapped it.
        if fullname == "ray" and not self._asks_others and self in sys.meta_path:
            self._asks_others = True
            try:
                # Those before this one have been asked: by Python, or they ask this one now.
                after = sys.meta_path[sys.meta_path.index(self) + 1 :]
                return _calling(_found(after, fullname, path, target), _prepare_init)
            finally:
                self._asks_others = False
        if fullname in LAUNCHERS:
            _found_run(LAUNCHERS[fullname])
            return None
        package, _, is_submodule = fullname.partition(".")
        # Another framework has been imported, and the program has switched tracing on since.
        for imported in [name for name in self._waiting if name in sys.modules and name != package]:
            self.has_imported_integration(imported)
        if not is_submodule or not self.has_imported_integration(package):
            return None
        # The integration may have added a finder before this one; Python does not ask it for this module.
        others = [finder for finder in sys.meta_path if finder is not self]
        return _found(others, fullname, path, target)

    def has_imported_integration(self, package: str) -> bool:
        """Import the integration of a framework, unless that was tried before, or tracing is off."""
        if not is_on(package):
            return False
        integration = self._waiting.pop(package, None)  # None: another thread was faster
        return integration is not None and _imported(package, integration) is not None


def _found(
    finders: Sequence[Any], fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Ask finders for a module."""
    for finder in finders:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


def _calling(spec: ModuleSpec | None, function: Callable[[Any], None]) -> ModuleSpec | None:
    """Have a function called with the module as soon as it is imported as a whole."""
    loader: Any = spec and spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is not None and hasattr(loader, "__dict__"):

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            function(module)

        loader.exec_module = exec_module
    return spec


def _prepare_init(ray: Any) -> None:
    """Replace ``ray.init`` by a function that traces Ray before the first call."""
    import functools

    untraced = ray.init
    is_prepared = False

    @functools.wraps(untraced)
    def init(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_prepared
        if (
            is_prepared or kwargs.get("_skip_env_hook") or not is_on("ray")
        ):  # Ray's dashboard sets that argument
            return untraced(*args, **kwargs)
        is_prepared = True
        tracing = _imported("ray", RAY)
        traced = untraced if tracing is None else tracing.init_by_variable(untraced)
        return traced(*args, **kwargs)

    ray.init = init


def _found_run(founder: str) -> None:
    """Import the module that founds a run, in a launcher; a failure is for the launched processes to log."""
    try:  # noqa: SIM105 - contextlib is not imported
        __import__(founder)
    except Exception:  # noqa: BLE001, S110 - the launched processes import it, too
        pass


def _imported(framework: str, integration: str) -> Any:
    """Import an integration; log a warning if it is installed and cannot be imported."""
    try:
        __import__(integration)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "otel_rollout":
            return None  # the package was removed, and this file remains
        _warn(framework, integration, error)
        return None
    except Exception as error:  # noqa: BLE001 - the program goes on untraced
        _warn(framework, integration, error)
        return None
    return sys.modules[integration]


def _warn(framework: str, integration: str, error: Exception) -> None:
    import logging

    logging.getLogger("otel_rollout").warning(
        "otel-rollout: rollouts of %s are not traced, because %s cannot be imported: %s: %s",
        framework,
        integration,
        type(error).__name__,
        error,
    )
