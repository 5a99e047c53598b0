"""Continue trajectories in pools of processes and of threads; forked children leave the parent's.

For ``multiprocessing.Pool`` and ``ProcessPoolExecutor``, the caller's context is pickled with the function of
each call. The pool's process records its own spans in the caller's trajectory.

``ThreadPoolExecutor.submit`` starts work in a thread that does not have the caller's context. verl's parsers
and reward functions run there: ``loop.run_in_executor`` calls ``submit``, in asyncio's loops and in uvloop's.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import util
from multiprocessing.pool import Pool, ThreadPool
from typing import Any

from opentelemetry import context as otel_context

from otel_rollout import settings_reader
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Function, Patches
from otel_rollout.record.capture import remote_call
from otel_rollout.record.launch import at_exit
from otel_rollout.record.propagation import http_clients
from otel_rollout.record.propagation.carrier import active_context, extract, inject
from otel_rollout.record.propagation.state import state
from otel_rollout.record.recording.identity import SUBMITTED

_POOL_METHODS = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")
"""Methods of ``multiprocessing.Pool`` whose first argument is a function; ``apply`` calls ``apply_async``."""


def install(patches: Patches) -> None:
    """Patch the methods that submit work to a pool."""
    for executor in (ThreadPoolExecutor, ProcessPoolExecutor):
        patches.replace(executor, "submit", functools.partial(_submitting, patches))
    for name in _POOL_METHODS:
        patches.replace(Pool, name, functools.partial(_calling, patches))


def _submitting(patches: Patches, original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(original)
    def submit(self: Executor, fn: Function, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return original(self, _continuing(self, fn) if patches.active else fn, *args, **kwargs)

    return submit


def _calling(patches: Patches, original: Function) -> Function:
    @functools.wraps(original)
    def call(self: Pool, func: Function, *args: Any, **kwargs: Any) -> Any:
        return original(self, _continuing(self, func) if patches.active else func, *args, **kwargs)

    return call


def _continuing(pool: Executor | Pool, function: Function) -> Function:
    """Return a function that calls ``function`` in the current context, in a pool's thread or process."""
    if not isinstance(pool, (ThreadPoolExecutor, ThreadPool)):
        carried = inject()
        return function if carried is None else functools.partial(run_with_carrier, carried, function)
    context = active_context()
    return function if context is None else functools.partial(run_in_context, context, function)


def run_with_carrier(carried: dict[str, str], function: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in a carrier's context. Runs in a process of the pool."""
    prepare_process()
    context = remote_call.start(extract(carried))
    try:
        return run_in_context(context, function, *args, **kwargs)
    finally:
        remote_call.end(context)


@internal_errors("preparing a process of a pool")
def prepare_process() -> None:
    """Let HTTP requests of this pool's process carry trajectories, and flush its spans at exit.

    The children of ``multiprocessing`` skip ``atexit``, so a finalizer flushes them.
    """
    if state.flushing_pool_process != os.getpid():
        state.flushing_pool_process = os.getpid()
        util.Finalize(None, at_exit.close, exitpriority=0)
        http_clients.install()


def run_in_context(context: otel_context.Context, fn: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Call ``fn`` with ``context`` as the current OTel context."""
    # Attach only the OTel context: a copied context would hide variables that the pool's initializer set.
    token, submitted = otel_context.attach(context), SUBMITTED.set(context)
    try:
        return fn(*args, **kwargs)
    finally:
        SUBMITTED.reset(submitted)
        otel_context.detach(token)


@internal_errors("leaving the trajectory after a fork")
def _leave_trajectory() -> None:
    """Empty a forked child's OTel context, so that it leaves the parent's trajectory."""
    if state.patches is not None and not settings_reader.switched_off(os.environ):
        otel_context.attach(otel_context.Context())


os.register_at_fork(after_in_child=_leave_trajectory)  # at import: a handler cannot be unregistered
