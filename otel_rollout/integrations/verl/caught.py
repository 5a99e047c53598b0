"""Errors that verl catches: seen where it logs them, while they are being handled.

verl turns what goes wrong in a tool into text for the model, and drops a call that its parser cannot read,
with a line in its log each. On a span they are errors, with their traceback.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from types import ModuleType

from opentelemetry import trace
from opentelemetry.trace import StatusCode

from otel_rollout.base.errors import fault


def install(module: ModuleType) -> None:
    """Note errors that this module of verl's logs on the span that is watched."""
    logger = getattr(module, "logger", None)
    if isinstance(logger, logging.Logger):
        logger.addFilter(_note)


class Watched:
    """The block in which errors that verl catches are those of the current span."""

    def __init__(self) -> None:
        self.span = trace.get_current_span()
        self.has_failed = False

    def __enter__(self) -> Watched:
        """Begin it."""
        self._before = _watched.get()
        _watched.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """End it. Not by a token: a coroutine may be closed from another context than it ran in."""
        _watched.set(self._before)

    def failed(self, message: str) -> None:
        """Mark the span as failed, and record the exception that is being handled, if one is."""
        error = sys.exc_info()[1]
        if error is not None:
            self.span.record_exception(error)
        self.span.set_status(StatusCode.ERROR, message)
        self.has_failed = True


_watched: ContextVar[Watched | None] = ContextVar("otel-rollout-verl-watched", default=None)


def _note(record: logging.LogRecord) -> bool:
    """A logging filter that lets everything pass."""
    try:
        watched = _watched.get()
        if watched is not None and record.levelno >= logging.WARNING:
            watched.failed(record.getMessage())
    except Exception as internal:  # noqa: BLE001
        fault("recording an error that verl caught", internal)
    return True
