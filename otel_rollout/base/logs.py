"""Keep a failing log handler from ending the program: only its log record is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

from otel_rollout.base.interrupts import pass_on


def guard_loggers(*names: str) -> None:
    """Make loggers ignore exceptions of their handlers.

    Even the standard handler raises an exception after the program has closed ``sys.stderr``.
    """
    for name in names:
        logger = logging.getLogger(name)
        logger.handle = _guarded(logger.handle)  # type: ignore[method-assign, assignment]


def _guarded(handle: Callable[[logging.LogRecord], None]) -> Callable[[logging.LogRecord], None]:
    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 - raised by the application's handler
            pass_on(error)

    return guarded
