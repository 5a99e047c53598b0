"""Import an integration when its framework is imported, in a process where tracing is configured.

Ray, TRL, verifiers and vLLM load no plugins of ours, so ``otel_rollout_autoload.pth`` calls :func:`wait` when
the interpreter starts. Python reads that file in the site directory of this module. Neither file imports
anything of the package ``otel_rollout`` before one of these frameworks is used. A program that sets the
variables itself imports the package, which calls :func:`wait`, too.

Ray counts as used when ``ray.init`` is called: Ray's own processes import Ray, but do not call ``ray.init``.
``torchrun`` and ``accelerate launch`` start one process per rank, and found the run into which all ranks
record.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

INTEGRATIONS = {
    "trl": "otel_rollout.integrations.trl",
    "verifiers": "otel_rollout.integrations.verifiers",
    "vllm": "otel_rollout.integrations.vllm",
}
"""Top-level package of a framework → the module that traces it."""
RAY = "otel_rollout.record.propagation.instrument"
"""The module that traces Ray."""
LAUNCHERS = {"torch.distributed.run": "otel_rollout"}
"""Module of a launcher → the module that founds the run which the launched processes join."""
DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
"""Variable of OpenTelemetry's zero-code instrumentation with the names of frameworks that are not traced."""


def wait() -> None:
    """Wait for the frameworks of ``INTEGRATIONS`` and for Ray, and trace those that are imported already."""
    waiting = next((finder for finder in sys.meta_path if isinstance(finder, Waiting)), None)
    if waiting is None:
        waiting = Waiting()
        sys.meta_path.insert(0, waiting)
    for package in INTEGRATIONS:
        if package in sys.modules:
            waiting.import_integration(package)
    if "ray" in sys.modules:
        _prepare_init(sys.modules["ray"])


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
    """A finder that asks the other finders for a framework, and notices when the framework is executed.

    No integration is imported while a finder looks for a module. Python holds a lock then, and would execute
    the module a second time if the integration imported it.
    """

    def __init__(self) -> None:
        self._waiting = dict(INTEGRATIONS)
        self._asks_others = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a framework, or of its submodule, with a wrapped loader; None for all others."""
        if fullname in LAUNCHERS:
            _found_run(LAUNCHERS[fullname])
            return None
        if fullname != "ray" and fullname.partition(".")[0] not in self._waiting:
            return None
        # Another finder may ask this one, and another library may have wrapped this one.
        if self._asks_others or self not in sys.meta_path:
            return None
        self._asks_others = True
        try:
            # The finders before this one have been asked by Python, or one of them asks this one now.
            spec = _found(sys.meta_path[sys.meta_path.index(self) + 1 :], fullname, path, target)
            if spec is not None:
                self._wrap_loader(spec)
            return spec
        finally:
            self._asks_others = False

    def import_integration(self, package: str) -> None:
        """Import the integration of a framework, unless this was tried before or tracing is off."""
        if is_on(package):
            integration = self._waiting.pop(package, None)  # None: another thread was faster
            if integration is not None:
                _imported(package, integration)

    def _wrap_loader(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return  # a loader that cannot be wrapped
        if getattr(execute, "otel_rollout_waits_for", None) == spec.name:
            return  # a loader that several modules share
        name, package = spec.name, spec.name.partition(".")[0]

        def exec_module(module: ModuleType) -> None:
            if getattr(module, "__name__", None) != name:
                execute(module)
                return
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            execute(module)
            if name == "ray":
                _prepare_init(module)
            elif name == package or not _is_being_imported(package):  # the package is complete
                self.import_integration(package)

        exec_module.otel_rollout_waits_for = name  # type: ignore[attr-defined]
        loader.exec_module = exec_module


def _found(
    finders: Sequence[Any], fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return the spec of a module from the first finder that has one; None if no finder has."""
    for finder in finders:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


def _is_being_imported(package: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(package), "__spec__", None), "_initializing", False))


def _prepare_init(ray: ModuleType) -> None:
    """Replace ``ray.init`` by a function that traces Ray before the first call."""
    # Reading an attribute of a module that is loaded lazily would load it.
    untraced = object.__getattribute__(ray, "__dict__").get("init")
    if type(untraced) is not type(_prepare_init) or hasattr(untraced, "otel_rollout_untraced"):
        return  # no Ray, a test's stand-in for Ray, or `init` is replaced already
    import functools

    @functools.wraps(untraced)
    def init(*args: Any, **kwargs: Any) -> Any:
        is_rays_own = kwargs.get("_skip_env_hook")  # its dashboard
        if is_rays_own or not is_on("ray") or _is_initialized(ray):
            return untraced(*args, **kwargs)
        tracing = _imported("ray", RAY)
        traced = untraced if tracing is None else tracing.init_by_variable(untraced)
        return traced(*args, **kwargs)

    init.otel_rollout_untraced = untraced  # type: ignore[attr-defined]
    ray.init = init  # type: ignore[attr-defined]
    home = sys.modules.get(init.__module__)
    if getattr(home, init.__name__, None) is untraced:
        setattr(home, init.__name__, init)  # pickle looks a function up in its module


def _is_initialized(ray: Any) -> bool:
    try:
        return bool(ray.is_initialized())
    except Exception:  # noqa: BLE001 - of a stand-in
        return False


def _found_run(founder: str) -> None:
    """Import the module that founds a run, in a launcher; the launched processes log a failure."""
    try:  # noqa: SIM105 - contextlib is not imported
        __import__(founder)
    except Exception:  # noqa: BLE001, S110 - the launched processes import it, too
        pass


def _imported(framework: str, integration: str) -> Any:
    """Import an integration; log a warning if it is installed and cannot be imported."""
    try:
        __import__(integration)
    except Exception as error:  # noqa: BLE001 - the program goes on untraced
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if (missing or "").partition(".")[0] != "otel_rollout":  # else the package was removed, not this file
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
