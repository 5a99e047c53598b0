"""Switch propagation on and off in a process."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from otel_rollout import settings_reader
from otel_rollout.base.errors import internal_errors, logger
from otel_rollout.base.patching import Function, Patches, when_imported
from otel_rollout.record.launch import at_exit
from otel_rollout.record.launch.shutdown import drain_other_nodes
from otel_rollout.record.propagation import (
    http_clients,
    pools,
    ray_incoming_calls,
    ray_later_runs,
    ray_outgoing_calls,
    ray_own_cluster,
    ray_private_api,
    ray_worker_setup,
)
from otel_rollout.record.propagation.ray_private_api import UnsupportedRay
from otel_rollout.record.propagation.state import state
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs import membership, ray_job
from otel_rollout.record.runs.state import state as runs


def instrument() -> None:
    """Continue trajectories in Ray's tasks and actors, in pools, and over HTTP.

    Call it before ``ray.init``. Pools are ``ThreadPoolExecutor``, ``ProcessPoolExecutor`` and
    ``multiprocessing.Pool``. Create pools of processes after :func:`otel_rollout.configure`, because their
    processes inherit the settings when they start.

    Requests of requests, urllib3, httpx, httpx2 and aiohttp carry ``traceparent`` to the hosts of the setting
    ``traceparent_hosts``.

    Your calls of Ray need no change. ``ray.init`` passes this process's settings to the job's workers and
    instruments them. A second call of ``instrument`` does nothing; :func:`uninstrument` undoes the first. Ray
    is patched once it is imported; if it lacks a name that a patch needs, a warning says so. Never raises.
    """
    with state.instrument_lock, internal_errors("instrumenting pools and HTTP clients"):
        state.is_uninstrumented = False
        if state.patches is None:
            state.patches = Patches()
            if not settings_reader.switched_off(os.environ):
                pools.install(state.patches)
                http_clients.install()
            when_imported("ray", _instrument_driver)
    recording.switch_on_instrumentors()


def init_by_variable(untraced: Function) -> Function:
    """Return a traced ``ray.init`` for a program in which variables alone switch tracing on. Never raises."""
    with internal_errors("instrumenting Ray"):
        if not state.is_uninstrumented:
            instrument()
        if state.patches is not None:
            return _preparing_workers(state.patches, untraced)
    return untraced


def uninstrument() -> None:
    """Undo :func:`instrument` in this process, and keep variables from instrumenting it.

    Workers of a running job stay instrumented. In such a worker, Ray's calls stay patched: other processes
    go on to send it trajectories, which user functions must not see.
    """
    with state.instrument_lock:
        state.is_uninstrumented = True
        job = ray_job.current()
        if state.ray_patches is not None and not (job and job.in_worker and job.is_prepared):
            state.ray_patches.undo()
            state.ray_patches = None
        if state.patches is not None:
            state.patches.undo()
            state.patches = None
        http_clients.uninstall()


@internal_errors("instrumenting Ray")
def _instrument_driver(ray: ModuleType) -> None:
    patches = state.patches
    if patches is None:  # uninstrument() was called before Ray was imported
        return
    try:
        patches.replace(ray, "init", functools.partial(_preparing_workers, patches))
        _replace_where_it_is_pickled(patches, ray.init)
        patches.replace(ray, "shutdown", functools.partial(_draining_nodes, patches))
        patch_ray_calls()
        if ray.is_initialized() and membership.decide().enabled and not ray_job.is_prepared():
            logger.warning(
                "otel-rollout: instrument() came after ray.init(), so this job's workers get neither this "
                "process's settings nor the trajectories of its calls. Workers whose own environment "
                "switches tracing on record traces of their own. Call instrument() before ray.init(), or set "
                "OTEL_TRACES_EXPORTER before Python starts."
            )
    except UnsupportedRay as missing:
        logger.warning(
            "otel-rollout: Ray %s has no %s, so trajectories do not continue in Ray workers by themselves. "
            "Put @otel_rollout.ray.carry_context below @ray.remote on classes and functions that are "
            "part of trajectories.",
            ray.__version__,
            missing,
        )


def _replace_where_it_is_pickled(patches: Patches, init: Function) -> None:
    """Put ``ray.init`` also into the module that defines it: pickled functions are looked up there."""
    home = sys.modules.get(init.__module__)
    if callable(vars(home).get(init.__name__) if home is not None else None):
        patches.replace(home, init.__name__, lambda _: init)


def _preparing_workers(patches: Patches, original: Function) -> Function:
    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        preparation = ray_worker_setup.Preparation(kwargs)
        is_ray_client = "://" in str(ray_own_cluster.address_of(args, kwargs, os.environ))
        if patches.active and not is_ray_client:  # whose server is not instrumented
            with internal_errors("preparing Ray's workers"):
                preparation = ray_worker_setup.prepare(args, kwargs, os.environ)
        with preparation.during:
            result = original(*args, **preparation.arguments)
        if patches.active and membership.decide().enabled:
            at_exit.register()  # again: the exit function must run before Ray's own
        return result

    return init


def _draining_nodes(patches: Patches, original: Function) -> Function:
    @functools.wraps(original)
    def shutdown(*args: Any, **kwargs: Any) -> Any:
        if patches.active:
            with internal_errors("waiting for delivery on other nodes"):
                drain_other_nodes()
                ray_later_runs.remove_published()
        return original(*args, **kwargs)

    return shutdown


# --- Ray's calls, and a worker of a Ray job ----------------------------------------------------------------


def patch_ray_calls() -> None:
    """Patch the calls of Ray that this process sends and receives, both or neither.

    A second call does nothing. The caller holds ``state.instrument_lock``.

    Raises:
        UnsupportedRay: when Ray lacks a private name that the patches need.
    """
    if state.ray_patches is not None:
        return
    names = ray_private_api.look_up()
    patches = Patches()
    try:
        ray_incoming_calls.install(names, patches)
        ray_outgoing_calls.install(names, patches)
    except Exception:
        patches.undo()
        raise
    state.ray_patches = patches


def instrument_worker() -> None:
    """Instrument a worker of an instrumented driver; the setup hook calls this.

    The job's own hook runs before, and may have called ``instrument()``.

    Raises:
        UnsupportedRay: when Ray lacks a private name that the patches need.
    """
    with state.instrument_lock:
        patch_ray_calls()
        runs.is_receiver = True
        if state.patches is None:
            state.patches = Patches()
            pools.install(state.patches)
            http_clients.install()
        ray_later_runs.set_first_run(settings_reader.inherited(os.environ).get("run_id", ""))
    recording.switch_on_instrumentors()
