"""Record errors that a framework catches and only logs, on the operation's span.

A framework may turn a tool's exception into text for the model, or drop a call that its parser cannot read.
Then only a log record tells of the error. A logging filter sees this record while the framework handles the
exception, and sets the span's status and exception.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from types import ModuleType

from opentelemetry import trace
from opentelemetry.trace import StatusCode

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import restore, set_variable


def install(module: ModuleType) -> None:
    """Watch the variable ``logger`` of a framework's module.

    Every :class:`LoggedErrors` block sees the records of this logger.
    """
    logger = getattr(module, "logger", None)
    if isinstance(logger, logging.Logger):
        logger.addFilter(_record_error)


class LoggedErrors:
    """A block in which a record of a watched logger marks the current span as failed.

    Only records of level WARNING and above do so.
    """

    def __init__(self) -> None:
        self._span = trace.get_current_span()
        self._outer: LoggedErrors | None = None
        self.has_failed = False
        """Whether the span is marked as failed."""

    def __enter__(self) -> LoggedErrors:
        """Make this block the innermost."""
        self._outer = _innermost.get()
        set_variable(_innermost, self)
        return self

    def __exit__(self, *_: object) -> None:
        """Make the block around this one the innermost."""
        restore(_innermost, self, self._outer)

    def fail(self, message: str) -> None:
        """Mark the span as failed, and record the exception that is being handled."""
        error = sys.exc_info()[1]
        if error is not None:
            self._span.record_exception(error)
        self._span.set_status(StatusCode.ERROR, message)
        self.has_failed = True


_innermost: ContextVar[LoggedErrors | None] = ContextVar("otel-rollout-logged-errors", default=None)


def _record_error(record: logging.LogRecord) -> bool:
    """Mark the innermost block's span as failed if a warning or an error is logged.

    This is a logging filter that passes every record.
    """
    with internal_errors("recording an error that a framework logged"):
        block = _innermost.get()
        if block is not None and record.levelno >= logging.WARNING:
            block.fail(record.getMessage())
    return True
