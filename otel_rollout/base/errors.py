"""Keep internal errors away from user code: log each once, and continue.

A log handler that fails does not end the program either: only its log record is lost. An exception of the
application's signal handler, a time limit for example, may be raised while code of this package runs. It is
meant for the application and is no internal error, so it is let through.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import ContextDecorator
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Final

from orjson import JSONEncodeError

from otel_rollout.base.state import state

logger: Final = logging.getLogger("otel_rollout")
"""The logger of processes that record."""
forwarder_logger: Final = logging.getLogger("otel_rollout.forwarder")
"""The logger of forwarders, and of commands that forward."""
MAX_REPORTED: Final = 10_000
"""Maximum number of different messages that a process logs through this module; more are not logged."""


class ReportedError(Exception):
    """The error of a command that cannot do its work; the command ends with the message."""


class Unusable(Exception):
    """The error of an argument that cannot be used.

    The public function that received the argument logs a warning, and raises nothing.

    Args:
        predicate: what is wrong, as the end of a sentence: ``"has 2 entries for 3 trajectories"``.
        subject: the sentence's subject, the argument.
    """

    def __init__(self, predicate: str, subject: str = "") -> None:
        super().__init__(predicate)
        self.subject = subject
        self._predicate = predicate

    def __str__(self) -> str:
        return f"{self.subject} {self._predicate}".lstrip()


class internal_errors(ContextDecorator):
    """Log exceptions of a block as internal errors, and continue after the block.

    As a decorator: the function returns None after an exception. An exception that a signal handler of the
    application raised inside the block goes through. So does a ``BaseException`` that is no ``Exception``.

    Args:
        doing: completes "internal error while …": ``"preparing Ray's workers"``.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if interrupt_in(error) is error:
            return False
        fault(self._doing, error)
        return True


def fault(doing: str, error: Exception) -> None:
    """Log an internal error, once for ``doing``, or warn of an argument that cannot be used.

    The caller continues as if tracing were off. Callers that need the exception use this function in place of
    :class:`internal_errors`. So does the hot path: a context manager would cost more than the work inside.

    Raises:
        BaseException: ``error`` or its cause, if a signal handler of the application raised it (a time limit,
            for example) while code of this package ran.
    """
    interrupt = interrupt_in(error)
    if interrupt is not None:
        raise interrupt
    if isinstance(error, Unusable):
        warn_once(f"{doing} failed: {error}", f"{doing} {error.subject}")
        return
    try:
        if is_new(doing):
            logger.error(
                "otel-rollout: internal error while %s; your code is not affected, some spans may be "
                "missing. Please report this.",
                doing,
                exc_info=error,
            )
    except Exception as failed:  # noqa: BLE001 - no memory, no stack, a logging handler that fails
        pass_on(failed)


def warn_once(message: str, once_for: str | None = None, logger: logging.Logger = logger) -> None:
    """Log a warning, once for its text or for ``once_for``. Raises nothing of its own.

    Args:
        message: text of the warning, without a full stop.
        once_for: key of the warning, for messages whose text varies.
        logger: writes the warning.
    """
    try:
        if is_new(message if once_for is None else once_for):
            logger.warning("otel-rollout: %s.", message)
    except Exception as failed:  # noqa: BLE001 - a logging handler that fails
        pass_on(failed)


def is_new(message: str) -> bool:
    """Return whether a message is new, and remember the message.

    After ``MAX_REPORTED`` different messages, no further one counts as new.
    """
    if message in state.reported or len(state.reported) >= MAX_REPORTED:
        return False
    state.reported.add(message)
    return True


def was_reported(doing: str) -> bool:
    """Return whether an error while ``doing`` was logged, or an argument that could not be used."""
    return any(key.startswith(doing) for key in tuple(state.reported))


def guard_loggers(*names: str) -> None:
    """Make loggers ignore exceptions of their handlers.

    Even the standard handler raises an exception after the program has closed ``sys.stderr``.
    """
    for name in names:
        guarded = logging.getLogger(name)
        guarded.handle = _guarded(guarded.handle)  # type: ignore[method-assign, assignment]


def _guarded(handle: Callable[[logging.LogRecord], None]) -> Callable[[logging.LogRecord], None]:
    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 - raised by the application's handler
            pass_on(error)

    return guarded


# --- exceptions of the application's signal handlers --------------------------------------------------------


def pass_on(error: BaseException) -> None:
    """Raise an exception again if it came from a signal handler; otherwise return.

    Call it wherever code of this package catches an exception and continues.

    Raises:
        BaseException: ``error`` or its cause, whichever a signal handler raised.
    """
    interrupt = interrupt_in(error)
    if interrupt is not None:
        raise interrupt


def interrupt_in(error: BaseException) -> BaseException | None:
    """Return ``error`` or its cause, whichever a signal handler raised, else None."""
    try:
        if _is_lost_by_orjson(error):
            return error.__cause__
        for raised in (error, error.__cause__):  # orjson wraps an exception of its `default`
            # The first frame is the code that caught the exception. A handler needs a second frame.
            if raised is not None and raised.__traceback__ is not None and raised.__traceback__.tb_next:
                handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
                known = {*handlers, pass_on.__code__}  # pass_on: the exception was let through before
                if any(frame.f_code in known for frame, _ in walk_tb(raised.__traceback__)):
                    return raised
    except (MemoryError, RecursionError):
        pass
    return None


def _is_lost_by_orjson(error: BaseException) -> bool:
    """Return whether orjson has dropped the traceback of its error's cause.

    That happens if a signal handler raises at the entry of a ``default`` function, before its ``try``: an
    exception that Python code never caught has no traceback.
    """
    cause = error.__cause__
    return (
        type(error) is JSONEncodeError
        and error.__traceback__ is not None
        and error.__traceback__.tb_next is None
        and cause is not None
        and cause.__traceback__ is None
        and not isinstance(cause, (MemoryError, RecursionError))
    )


def _code_of(handler: object) -> CodeType | None:
    code = getattr(handler, "__code__", None)
    if code is None and callable(handler):
        code = getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
