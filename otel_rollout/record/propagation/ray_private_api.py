"""Look up the private names of Ray that are patched, and check their signatures."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

_SIGNATURE_MODULES = ("ray._common.signature", "ray._private.signature")  # as in Ray 2.60, and in 2.41


class UnsupportedRay(RuntimeError):
    """The installed Ray lacks a name that propagation needs; the message is that name."""


@dataclass(frozen=True)
class RayNames:
    """Classes and modules of Ray that propagation patches or reads."""

    signature: Any
    """Module that flattens arguments for sending (``flatten_args``) and restores them (``recover_args``)."""
    actor_handle: Any
    """Sends method calls: ``ActorHandle._actor_method_call(self, method_name, args, kwargs, …)``."""
    actor_class: Any
    """Sends constructor calls: ``ActorClass._remote(self, args, kwargs, …)``."""
    remote_function: Any
    """Sends tasks: ``RemoteFunction._remote(self, args, kwargs, …)``."""
    function_manager: Any
    """Gives a worker the function to run: ``FunctionActorManager.get_execution_info(self, job_id, …)``."""
    worker_module: Any
    """Identifies the job: ``global_worker.current_cluster_and_job``."""


def look_up() -> RayNames:
    """Look up the private names in the installed Ray.

    Raises:
        UnsupportedRay: when a name is missing or is not what the patches expect.
        ImportError: when Ray is not installed.
    """
    actor = importlib.import_module("ray.actor")
    names = RayNames(
        signature=_signature_module(actor),
        actor_handle=_member(actor, "ActorHandle"),
        actor_class=_member(actor, "ActorClass"),
        remote_function=_member(importlib.import_module("ray.remote_function"), "RemoteFunction"),
        function_manager=_member(_module("ray._private.function_manager"), "FunctionActorManager"),
        worker_module=_module("ray._private.worker"),
    )
    _check_parameters(names.signature, "flatten_args", "args", "kwargs")
    _check_parameters(names.signature, "recover_args")
    _check_parameters(names.actor_handle, "_actor_method_call", "args", "kwargs")
    _check_parameters(names.actor_class, "_remote", "args", "kwargs")
    _check_parameters(names.remote_function, "_remote", "args", "kwargs")
    _check_parameters(names.function_manager, "get_execution_info")
    information = _member(_module("ray._private.function_manager"), "FunctionExecutionInfo")
    if "function" not in getattr(information, "_fields", ()):
        raise UnsupportedRay("FunctionExecutionInfo.function")
    worker = _member(names.worker_module, "Worker")
    if not hasattr(worker, "current_cluster_and_job"):
        raise UnsupportedRay("Worker.current_cluster_and_job")
    return names


def _signature_module(actor: Any) -> Any:
    """Return the module that ``ray.actor`` calls; patching another copy has no effect."""
    module = _member(actor, "signature")
    if getattr(module, "__name__", None) not in _SIGNATURE_MODULES:
        raise UnsupportedRay("ray.actor.signature")
    return module


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnsupportedRay(name) from None


def _member(owner: Any, name: str) -> Any:
    member = getattr(owner, name, None)
    if member is None:
        raise UnsupportedRay(f"{owner.__name__}.{name}")
    return member


def _check_parameters(owner: Any, name: str, *parameters: str) -> None:
    function = vars(owner).get(name)
    if not callable(function) or not set(parameters) <= set(inspect.signature(function).parameters):
        raise UnsupportedRay(f"{owner.__name__}.{name}")
