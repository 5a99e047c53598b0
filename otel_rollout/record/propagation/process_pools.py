"""Continue trajectories in ``multiprocessing.Pool`` and ``ProcessPoolExecutor``.

The caller's context is pickled with the function of each call. The pool's process records its own spans in
the caller's trajectory.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import util
from multiprocessing.pool import Pool, ThreadPool
from typing import Any

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Patches
from otel_rollout.record.capture import remote_call
from otel_rollout.record.launch import at_exit
from otel_rollout.record.propagation import carrier, http_clients
from otel_rollout.record.propagation.state import state
from otel_rollout.record.propagation.thread_pools import run_in_context

_POOL_METHODS = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")
"""Methods of ``multiprocessing.Pool`` whose first argument is a function; ``apply`` calls ``apply_async``."""


def install(patches: Patches) -> None:
    """Patch the methods that submit work to a pool."""
    patches.replace(ProcessPoolExecutor, "submit", functools.partial(_submitting, patches))
    for name in _POOL_METHODS:
        patches.replace(Pool, name, functools.partial(_calling, patches))


def _submitting(patches: Patches, original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(original)
    def submit(
        self: ProcessPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return original(self, _with_carrier(fn) if patches.active else fn, *args, **kwargs)

    return submit


def _calling(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Pool, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if patches.active and isinstance(self, ThreadPool):
            context = carrier.active_context()
            func = func if context is None else functools.partial(run_in_context, context, func)
        elif patches.active:
            func = _with_carrier(func)
        return original(self, func, *args, **kwargs)

    return call


def _with_carrier(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a picklable function that calls ``function`` in the current context."""
    carried = carrier.inject()
    return function if carried is None else functools.partial(run_with_carrier, carried, function)


def run_with_carrier(
    carried: dict[str, str], function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call ``function`` in a carrier's context. Runs in a process of the pool."""
    prepare_process()
    context = remote_call.start(carrier.extract(carried))
    try:
        return run_in_context(context, function, *args, **kwargs)
    finally:
        remote_call.end(context)


@internal_errors("preparing a process of a pool")
def prepare_process() -> None:
    """Let requests carry trajectories, and flush at exit.

    Children of ``multiprocessing`` skip ``atexit``.
    """
    if state.flushing_pool_process != os.getpid():
        state.flushing_pool_process = os.getpid()
        util.Finalize(None, at_exit.close, exitpriority=0)
        http_clients.install()
