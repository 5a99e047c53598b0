"""The trajectory in thread pools, and not in forked children.

``ThreadPoolExecutor.submit`` starts work in a thread that knows nothing of the caller's context. verl's
parsers and reward functions run there, by ``loop.run_in_executor``, which ends in ``submit`` on asyncio's
loops and uvloop's alike.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from opentelemetry import context as otel_context

from otel_rollout._state import process
from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Patches
from otel_rollout.propagation.carrier import active_context

Submit = Callable[..., "Future[Any]"]


def install() -> None:
    """Let work in thread pools belong to the trajectory that submitted it. Idempotent."""
    if process.thread_patches is not None:
        return
    patches = process.thread_patches = Patches()
    patches.replace(ThreadPoolExecutor, "submit", functools.partial(_submitting, patches))


def uninstall() -> None:
    """Undo :func:`install`."""
    if process.thread_patches is not None:
        process.thread_patches.undo()
        process.thread_patches = None


def _submitting(patches: Patches, original: Submit) -> Submit:
    @functools.wraps(original)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        context = active_context() if patches.active else None
        if context is None:
            return original(self, fn, *args, **kwargs)
        return original(self, run, context, fn, *args, **kwargs)

    return submit


def run(context: otel_context.Context, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``fn`` in ``context``."""
    # The OTel context alone: in a copy of all context variables, fn would not see those that the pool's
    # initializer has set in this thread.
    token = otel_context.attach(context)
    try:
        return fn(*args, **kwargs)
    finally:
        otel_context.detach(token)


def _after_fork_in_child() -> None:
    """The parent's trajectory goes on in the parent; what the child does is not part of it."""
    try:
        if process.thread_patches is not None:
            otel_context.attach(otel_context.Context())
    except Exception as error:  # noqa: BLE001 - the child must start
        fault("leaving the trajectory after a fork", error)


os.register_at_fork(after_in_child=_after_fork_in_child)  # at import: it cannot be unregistered
