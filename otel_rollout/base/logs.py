"""Logging that ends no program: where a handler fails, the record is lost and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable

from otel_rollout.base.interrupts import pass_on


def guard_loggers(*names: str) -> None:
    """Have loggers swallow what their handlers raise.

    The standard handler raises, too, where a program has closed its ``sys.stderr``.
    """
    for name in names:
        logger = logging.getLogger(name)
        logger.handle = _guarded(logger.handle)  # type: ignore[method-assign, assignment]


def _guarded(handle: Callable[[logging.LogRecord], None]) -> Callable[[logging.LogRecord], None]:
    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 - the application's handler, at the end of its streams
            pass_on(error)

    return guarded
