"""The sending side: calls made inside a trajectory take its context along.

The user's keyword arguments are handed on through Ray in a dict of our own that remembers the receiver,
and when Ray has checked them against the signature and flattens them, the carrier is added to the flat
list. So nobody between ``.remote()`` and the wire (signature checks, invocation decorators, Ray Client,
Ray's own tracing) sees an argument that the user did not give; and should Ray one day flatten otherwise,
calls go out without context instead of failing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import orjson

from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Patches
from otel_rollout.propagation import carrier, ray_later_runs
from otel_rollout.propagation.ray_private_api import RayNames
from otel_rollout.runs.ray_job import is_prepared

ARGUMENT: Final = "_otel_rollout_context"
"""Keyword argument under which the carrier travels, as JSON bytes: what Ray serializes fastest."""
Call = Callable[..., Any]


class KeywordArguments(dict[str, Any]):
    """The user's keyword arguments on their way through Ray; true even when empty, so they get there."""

    __slots__ = ("receiver",)

    def __init__(self, given: dict[str, Any] | None, receiver: Any) -> None:
        super().__init__(given or {})
        self.receiver = receiver

    def __bool__(self) -> bool:
        return True


def install(names: RayNames, patches: Patches) -> None:
    """Patch the three places that calls leave from, and the one where their arguments are flattened."""
    jobs = Jobs(names)
    patches.replace(names.signature, "flatten_args", functools.partial(_flattening, jobs))
    patches.replace(
        names.actor_handle,
        "_actor_method_call",
        functools.partial(_sending, patches, "_ray_is_cross_language"),
    )
    patches.replace(
        names.remote_function, "_remote", functools.partial(_sending, patches, "_is_cross_language")
    )
    patches.replace(names.actor_class, "_remote", functools.partial(_sending, patches, None))


def _sending(patches: Patches, cross_language: str | None, original: Call) -> Call:
    """Wrap a method of Ray's that sends a call, given as its parameters ``args`` and ``kwargs``."""
    position = list(inspect.signature(original).parameters).index("kwargs") - 1  # self is passed apart

    @functools.wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if patches.active and _has_something_to_carry():
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


def _has_something_to_carry() -> bool:
    return carrier.active_context() is not None or ray_later_runs.is_to_be_named()


def carried_by_calls() -> dict[str, str] | None:
    """Return what a call takes along: the context, and the run where its receiver may not know it."""
    carried = carrier.inject()
    run = ray_later_runs.run_to_name()
    return carried if run is None else {**(carried or {}), ray_later_runs.RUN_KEY: run}


def _is_cross_language(sender: Any, attribute: str | None) -> Any:
    if attribute is None:
        return sender.__ray_metadata__.is_cross_language
    return getattr(sender, attribute)


def _flattening(jobs: Jobs, original: Call) -> Call:
    @functools.wraps(original)
    def flatten_args(signature_parameters: Any, args: Any, kwargs: Any) -> Any:
        flat = original(signature_parameters, args, kwargs)
        if type(kwargs) is KeywordArguments:
            try:
                if jobs.receives(kwargs.receiver):
                    carried = carried_by_calls()
                    if carried is not None:
                        flat = [*flat, ARGUMENT, orjson.dumps(carried)]
            except Exception as error:  # noqa: BLE001 - the call goes out without context
                fault("adding the context to a call of Ray's", error)
        return flat

    return flatten_args


class Jobs:
    """Knows whether whom we call takes the carrier off again. If not, its function would be handed it."""

    def __init__(self, names: RayNames) -> None:
        self._worker_module = names.worker_module
        self._actor_handle = names.actor_handle
        self._job: Any = None
        self._job_receives = False

    def receives(self, receiver: Any) -> bool:
        """Whether the receiver runs in this job, and this job's workers are prepared."""
        job = self._worker_module.global_worker.current_cluster_and_job
        if job != self._job:
            self._job_receives = is_prepared()
            self._job = job
        if not self._job_receives:
            return False
        # A handle from ray.get_actor() may lead into another job; tasks and new actors never do.
        return not isinstance(receiver, self._actor_handle) or receiver._ray_actor_id.job_id == job[1]
