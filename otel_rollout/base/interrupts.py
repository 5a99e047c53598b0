"""Let exceptions of the application's signal handlers through this package.

They may be raised while code of this package runs.

Such an exception, a time limit for example, is meant for the application and is no internal error.
"""

from __future__ import annotations

import signal
from traceback import walk_tb
from types import CodeType

from orjson import JSONEncodeError


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
