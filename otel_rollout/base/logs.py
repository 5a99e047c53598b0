"""Keep failing log handlers from ending a program: the record is lost, and nothing else happens."""

from __future__ import annotations

import logging
from collections.abc import Callable

from otel_rollout.base.interrupts import pass_on


def guard_loggers(*names: str) -> None:
    """Have loggers ignore exceptions of their handlers.

    Even the standard handler raises one in a program that has closed its ``sys.stderr``.
    """
    for name in names:
        logger = logging.getLogger(name)
        logger.handle = _guarded(logger.handle)  # type: ignore[method-assign, assignment]


def _guarded(handle: Callable[[logging.LogRecord], None]) -> Callable[[logging.LogRecord], None]:
    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 - of the application's handler
            pass_on(error)

    return guarded
