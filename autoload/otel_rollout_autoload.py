"""Import an integration when its framework is imported, in a process in which tracing is configured.

TRL, verifiers and vLLM load no plugins of ours, so ``otel_rollout_autoload.pth`` calls :func:`wait` when the
interpreter starts. Python reads that file in the site directory of this module. Neither file imports anything
of the package ``otel_rollout`` before one of these frameworks is imported.

``torchrun`` and ``accelerate launch`` start one process per rank, and found the run into which all ranks
record.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

INTEGRATIONS = {
    "trl": "otel_rollout.integrations.trl",
    "verifiers": "otel_rollout.integrations.verifiers",
    "vllm": "otel_rollout.integrations.vllm",
}
"""Top-level package of a framework → the module that traces it."""
LAUNCHERS = {"torch.distributed.run": "otel_rollout"}
"""Module of a launcher → the module that founds the run which the launched processes join."""


def wait() -> None:
    """Wait for the frameworks of ``INTEGRATIONS``; a second call does nothing.

    A framework that is imported already, by another package's file, is not waited for.
    """
    if not any(isinstance(finder, FirstSubmodule) for finder in sys.meta_path):
        waiting = FirstSubmodule()
        sys.meta_path.insert(0, waiting)
        for package in INTEGRATIONS:
            if package in sys.modules:
                waiting.has_imported_integration(package)


class FirstSubmodule:
    """A finder that finds nothing, and notices the first import of a framework's submodule.

    A package is imported before its submodules. ``importlib.util.find_spec("trl")`` alone imports neither.
    """

    def __init__(self) -> None:
        self._waiting = dict(INTEGRATIONS)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import the integration of ``fullname``'s framework, and leave the module to the other finders."""
        if fullname in LAUNCHERS:
            _found_run(LAUNCHERS[fullname])
            return None
        package, _, is_submodule = fullname.partition(".")
        if not is_submodule or package not in self._waiting:
            return None
        if not self.has_imported_integration(package):
            return None
        # The integration may have added a finder before this one; Python does not ask it for this module.
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if find is None or type(finder) is FirstSubmodule:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def has_imported_integration(self, package: str) -> bool:
        """Import the integration of a framework, unless that was tried before."""
        integration = self._waiting.pop(package, None)  # None: another thread was faster
        return integration is not None and _has_imported(integration)


def _found_run(founder: str) -> None:
    """Import the module that founds a run, in a launcher; a failure is for the launched processes to log."""
    try:  # noqa: SIM105 - contextlib is not imported
        __import__(founder)
    except Exception:  # noqa: BLE001, S110 - the launched processes import it, too
        pass


def _has_imported(integration: str) -> bool:
    """Import an integration; log a warning if it is installed and cannot be imported."""
    try:
        __import__(integration)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "otel_rollout":
            return False  # the package was removed, and this file remains
        _warn(integration, error)
        return False
    except Exception as error:  # noqa: BLE001 - the program goes on untraced
        _warn(integration, error)
        return False
    return True


def _warn(integration: str, error: Exception) -> None:
    import logging

    framework = integration.rpartition(".")[2]
    logging.getLogger("otel_rollout").warning(
        "otel-rollout: rollouts of %s are not traced, because %s cannot be imported: %s: %s",
        framework,
        integration,
        type(error).__name__,
        error,
    )
