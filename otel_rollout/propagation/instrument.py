"""Switching propagation on and off in a process."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from otel_rollout import configuration
from otel_rollout._state import process
from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Patches
from otel_rollout.launch import at_exit
from otel_rollout.launch.shutdown import drain_other_nodes
from otel_rollout.propagation import (
    processes,
    ray_names,
    ray_receive,
    ray_runs,
    ray_send,
    ray_workers,
    threads,
)
from otel_rollout.propagation.ray_names import UnsupportedRay
from otel_rollout.runs import membership, ray_job

_logger = logging.getLogger("otel_rollout")


def instrument() -> None:
    """Let trajectories continue in Ray tasks and actors, and in pools. Call it before ``ray.init``.

    Pools are ``ThreadPoolExecutor``, ``ProcessPoolExecutor`` and ``multiprocessing.Pool``. Make those of
    processes after :func:`otel_rollout.configure`: their processes know what it said before they started.

    Calls stay as they are; ``ray.init`` gives the job's workers this process's settings and has them do
    the same. Calling it again does nothing; :func:`uninstrument` undoes it. Without Ray, and on a Ray that
    is not understood, what can be done is done. Never raises.
    """
    with process.instrument_lock:
        if process.patches is not None:
            return
        patches = process.patches = Patches()
        try:
            threads.install()
            processes.install(patches)
            if importlib.util.find_spec("ray") is not None:
                _instrument_driver(patches)
        except Exception as error:  # noqa: BLE001 - the program goes on without propagation
            fault("instrumenting Ray", error)


def uninstrument() -> None:
    """Undo :func:`instrument` in this process. A running job's workers stay as they are."""
    with process.instrument_lock:
        if process.patches is not None:
            process.patches.undo()
            process.patches = None
        threads.uninstall()


def instrument_worker() -> None:
    """Take part in a job whose driver is instrumented; called in each worker by the setup hook.

    Raises:
        UnsupportedRay: when a name of Ray's is missing.
    """
    with process.instrument_lock:
        if process.patches is not None:
            return
        names = ray_names.look_up()
        patches = Patches()
        try:
            ray_receive.install(names, patches)
            ray_send.install(names, patches)
            processes.install(patches)
            threads.install()
            ray_runs.begin(configuration.inherited(os.environ).get("run_id", ""))
        except Exception:
            patches.undo()
            raise
        process.patches = patches


def _instrument_driver(patches: Patches) -> None:
    import ray

    patches.replace(ray, "init", functools.partial(_initializing, patches))
    patches.replace(ray, "shutdown", functools.partial(_shutting_down, patches))
    try:
        names = ray_names.look_up()
    except UnsupportedRay as missing:
        _logger.warning(
            "otel-rollout: Ray %s has no %s, so trajectories do not continue in Ray workers by themselves. "
            "Put @otel_rollout.ray.carry_context below @ray.remote on classes and functions whose "
            "calls are to belong to them.",
            ray.__version__,
            missing,
        )
        return
    if ray.is_initialized() and membership.decide().enabled and not ray_job.is_prepared():
        _logger.warning(
            "otel-rollout: instrument() came after ray.init(), so this job's workers get neither this "
            "process's settings nor the trajectories of its calls. Workers whose own environment switches "
            "tracing on record, in traces of their own. Call instrument() before ray.init(), or set "
            "RAY_RUNTIME_ENV_HOOK=otel_rollout.ray.runtime_env_hook."
        )
    ray_send.install(names, patches)


def _initializing(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        submitted = os.environ.get(ray_workers.SUBMITTED_JOB)
        if patches.active and not _is_ray_client(*args, **kwargs):
            try:
                kwargs, submitted = ray_workers.arranged(kwargs, os.environ)
            except Exception as error:  # noqa: BLE001 - Ray starts without us
                fault("preparing Ray's workers", error)
        with _variable(ray_workers.SUBMITTED_JOB, submitted):
            result = original(*args, **kwargs)
        if patches.active and membership.decide().enabled:
            at_exit.register()  # again: at exit, before Ray's own end
        return result

    return init


def _shutting_down(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def shutdown(*args: Any, **kwargs: Any) -> Any:
        if patches.active:
            try:
                drain_other_nodes()
                ray_runs.forget()
            except Exception as error:  # noqa: BLE001 - Ray ends all the same
                fault("waiting for delivery on other nodes", error)
        return original(*args, **kwargs)

    return shutdown


def _is_ray_client(*args: Any, **kwargs: Any) -> bool:
    """Whether calls will go through a proxy on the cluster, which we do not instrument."""
    address = args[0] if args else kwargs.get("address")
    if address in (None, "auto"):
        address = os.environ.get("RAY_ADDRESS")
    return "://" in str(address)


@contextmanager
def _variable(name: str, value: str | None) -> Iterator[None]:
    """An environment variable as it is to be during a call."""
    before = os.environ.get(name)
    if value == before or value is None:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
