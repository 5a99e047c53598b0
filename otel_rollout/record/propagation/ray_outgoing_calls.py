"""Add the current context to calls of Ray's tasks and actors.

The user's keyword arguments pass through Ray in a dict subclass that remembers the receiver. Ray checks the
arguments against the signature and flattens them; then the carrier is added to the flat list. So no code
between ``.remote()`` and the wire (signature checks, invocation decorators, Ray Client, Ray's own tracing)
sees an argument that the user did not give. If a later Ray flattens arguments elsewhere, calls go out without
context and do not fail.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import orjson

from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Function, Patches
from otel_rollout.record.propagation import carrier, ray_later_runs
from otel_rollout.record.propagation.ray_private_api import RayNames
from otel_rollout.record.propagation.state import state
from otel_rollout.record.runs.ray_job import is_prepared

ARGUMENT: Final = "_otel_rollout_context"
"""Keyword argument that holds the carrier as JSON bytes, the type that Ray serializes fastest."""


class KeywordArguments(dict[str, Any]):
    """The user's keyword arguments, with the call's receiver.

    An empty object is true as well: Ray would replace a false one by ``{}``.
    """

    __slots__ = ("receiver",)

    def __init__(self, given: dict[str, Any] | None, receiver: Any) -> None:
        super().__init__(given or {})
        self.receiver = receiver

    def __bool__(self) -> bool:
        return True


def install(names: RayNames, patches: Patches) -> None:
    """Patch three methods that send calls, and the function that flattens arguments."""
    patches.replace(names.signature, "flatten_args", functools.partial(_adding_carrier, names))
    for class_, method, cross_language in (
        (names.actor_handle, "_actor_method_call", "_ray_is_cross_language"),
        (names.remote_function, "_remote", "_is_cross_language"),
        (names.actor_class, "_remote", None),
    ):
        patches.replace(class_, method, functools.partial(_sending, patches, cross_language))


def _sending(patches: Patches, cross_language: str | None, original: Function) -> Function:
    """Wrap a method that sends a call, whose arguments are ``args`` and ``kwargs``."""
    position = list(inspect.signature(original).parameters).index("kwargs") - 1  # not counting self

    @functools.wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if patches.active and (carrier.active_context() is not None or ray_later_runs.is_later_run()):
            try:
                if not _is_cross_language(self, cross_language):
                    if len(args) > position:
                        carrying = KeywordArguments(args[position], self)
                        args = (*args[:position], carrying, *args[position + 1 :])
                    else:
                        kwargs["kwargs"] = KeywordArguments(kwargs.get("kwargs"), self)
            except Exception as error:  # noqa: BLE001 - the call goes out without context
                fault("preparing a call of Ray's", error)
        return original(self, *args, **kwargs)

    return send


def carrier_of_call() -> dict[str, str] | None:
    """Return the carrier of a call; None if there is nothing to carry.

    The carrier has the current context, and the id of a run that the receiver may not know.
    """
    carried = carrier.inject()
    run_id = ray_later_runs.run_id_to_carry()
    return carried if run_id is None else {**(carried or {}), ray_later_runs.RUN_KEY: run_id}


def _is_cross_language(sender: Any, attribute: str | None) -> Any:
    if attribute is None:
        return sender.__ray_metadata__.is_cross_language
    return getattr(sender, attribute)


def _removes_carrier(names: RayNames, receiver: Any) -> bool:
    """Return whether a receiver removes the carrier.

    A receiver of this job does so if the job's workers are prepared. Any other receiver would pass the
    carrier to the user's function.
    """
    job = names.worker_module.global_worker.current_cluster_and_job
    if state.known_job[0] != job:
        state.known_job = job, is_prepared()
    if not state.known_job[1]:
        return False
    # A handle from ray.get_actor() may lead into another job; tasks and new actors never do.
    return not isinstance(receiver, names.actor_handle) or receiver._ray_actor_id.job_id == job[1]


def _adding_carrier(names: RayNames, original: Function) -> Function:
    @functools.wraps(original)
    def flatten_args(signature_parameters: Any, args: Any, kwargs: Any) -> Any:
        flat = original(signature_parameters, args, kwargs)
        if type(kwargs) is KeywordArguments:
            try:
                if _removes_carrier(names, kwargs.receiver):
                    carried = carrier_of_call()
                    if carried is not None:
                        flat = [*flat, ARGUMENT, orjson.dumps(carried)]
            except Exception as error:  # noqa: BLE001 - the call goes out without context
                fault("adding the context to a call of Ray's", error)
        return flat

    return flatten_args
