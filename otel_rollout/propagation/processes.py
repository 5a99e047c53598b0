"""The trajectory in pools of processes: ``multiprocessing.Pool`` and ``ProcessPoolExecutor``.

The caller's context travels with each call, beside the function, which is pickled as ever. The process
records on its own, as part of the trajectory.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import util
from multiprocessing.pool import Pool, ThreadPool
from typing import Any

from otel_rollout._state import process
from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Patches
from otel_rollout.capture import remote_call
from otel_rollout.launch import at_exit
from otel_rollout.propagation import carrier, threads

_POOL_METHODS = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")
"""What takes a function first; ``apply`` calls ``apply_async``."""


def install(patches: Patches) -> None:
    """Let work in process pools belong to the trajectory that submitted it."""
    patches.replace(ProcessPoolExecutor, "submit", functools.partial(_submitting, patches))
    for name in _POOL_METHODS:
        patches.replace(Pool, name, functools.partial(_calling, patches))


def _submitting(patches: Patches, original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(original)
    def submit(
        self: ProcessPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return original(self, _taking_along(fn) if patches.active else fn, *args, **kwargs)

    return submit


def _calling(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Pool, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if patches.active and isinstance(self, ThreadPool):
            context = carrier.active_context()
            func = func if context is None else functools.partial(threads.run, context, func)
        elif patches.active:
            func = _taking_along(func)
        return original(self, func, *args, **kwargs)

    return call


def _taking_along(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs ``function`` in the current context, in another process."""
    carried = carrier.inject()
    return function if carried is None else functools.partial(run, carried, function)


def run(carried: dict[str, str], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in the context that came along."""
    try:
        _close_at_exit()
    except Exception as error:  # noqa: BLE001 - the call goes on
        fault("preparing a process of a pool", error)
    context = remote_call.start(carrier.extract(carried))
    try:
        return threads.run(context, function, *args, **kwargs)
    finally:
        remote_call.end(context)


def _close_at_exit() -> None:
    """Have this process flush when it exits: children of ``multiprocessing`` run no ``atexit`` functions."""
    if process.flushing_pool_process != os.getpid():
        process.flushing_pool_process = os.getpid()
        util.Finalize(None, at_exit.close, exitpriority=0)
