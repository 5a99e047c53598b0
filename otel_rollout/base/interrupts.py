"""What a signal handler of the application raises while we run is the application's, and no fault of ours."""

from __future__ import annotations

import signal
from traceback import walk_tb
from types import CodeType

from orjson import JSONEncodeError


def pass_on(error: BaseException) -> None:
    """For whatever of ours goes on after an exception, a user's ``__repr__`` having failed, say.

    Raises:
        BaseException: ``error``, or what it came of, if that was raised by a signal handler (a time limit).
    """
    interrupt = interrupt_in(error)
    if interrupt is not None:
        raise interrupt


def interrupt_in(error: BaseException) -> BaseException | None:
    """The exception of a signal handler that ``error`` is, or came of, if so."""
    try:
        if _is_lost_by_orjson(error):
            return error.__cause__
        for raised in (error, error.__cause__):  # orjson raises its own from what it meets
            # One frame alone is the one that caught it: the handler's would be a second.
            if raised is not None and raised.__traceback__ is not None and raised.__traceback__.tb_next:
                handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
                known = {*handlers, pass_on.__code__}  # what we have passed on before, we pass on again
                if any(frame.f_code in known for frame, _ in walk_tb(raised.__traceback__)):
                    return raised
    except (MemoryError, RecursionError):
        pass
    return None


def _is_lost_by_orjson(error: BaseException) -> bool:
    """Whether something struck at the entry of a ``default`` that catches whatever it raises itself.

    orjson keeps no traceback of it, and what was never caught has none.
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
