"""Set context variables, except while the garbage collector runs.

CPython before 3.12 may collect inside any allocation, also inside ``ContextVar.set`` and ``copy_context``. If
a finalizer, or a generator or coroutine that the collector closes, then sets a variable of the same context,
the interrupted call goes on in freed memory, and the process dies. So code of this package that may run in a
collection sets context variables by the functions of this module.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry.context import Context, get_current

COLLECTING: Final[set[str]] = set()
"""Not empty while the collector runs in a thread. The hot path reads this set before it calls
:func:`is_collecting`."""
_LATEST: Final[dict[str, object]] = {}
_HERE: Final = threading.local()
Value = TypeVar("Value")

# The collector calls each of these with "start" or "stop", and with a dict that is new each time. All are C
# functions: in Python code, a signal handler could raise, and the collector drops exceptions. The first adds
# a "p" and the letters of the word, the second removes the letters of the word. After "start", the "p" is
# left; after "stop", which has a "p", nothing is left.
_CALLBACKS: Final = (
    functools.partial(COLLECTING.update, "p"),
    COLLECTING.difference_update,
    _LATEST.__setitem__,
    _HERE.__setattr__,
)


def watch_collections() -> None:
    """Register callbacks of the garbage collector before Python 3.12; a second call does nothing."""
    if sys.version_info < (3, 12) and _CALLBACKS[0] not in gc.callbacks:
        gc.callbacks.extend(_CALLBACKS)


def is_collecting() -> bool:
    """Return whether the garbage collector runs in this thread; False from Python 3.12 on."""
    return bool(COLLECTING) and getattr(_HERE, "start", None) is _LATEST.get("start")


if hasattr(otel_context, "_RUNTIME_CONTEXT"):

    def attach(context: Context) -> Any:
        """Make a context current, and return its token; in a garbage collection, only return None."""
        if COLLECTING and is_collecting():
            return None
        return otel_context._RUNTIME_CONTEXT.attach(context)  # the API's `attach` would be one more call

else:  # a version of the API without this private name

    def attach(context: Context) -> Any:
        """Make a context current, and return its token; in a garbage collection, only return None."""
        return None if is_collecting() else otel_context.attach(context)


def set_variable(variable: ContextVar[Value], value: Value) -> None:
    """Set a context variable, except in a garbage collection."""
    if not is_collecting():
        variable.set(value)


# A block ends without a token: a coroutine or generator may be closed in another context than its own.


@contextmanager
def current_context(inside: Context) -> Iterator[None]:
    """Make a context current inside the block.

    At the end of the block, the outer context is restored if ``inside`` is still current.
    """
    outside: Any = get_current()
    attach(inside)
    try:
        yield
    finally:
        if get_current() is inside:
            attach(outside)


@contextmanager
def variable_set(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a context variable inside the block.

    At the end of the block, the outer value is restored if the variable still has the block's value.
    """
    outer = variable.get()
    set_variable(variable, value)
    try:
        yield
    finally:
        restore(variable, value, outer)


def restore(variable: ContextVar[Value], value: Value, outer: Value) -> None:
    """Set a context variable to ``outer``, if it still has ``value``, which a block gave it."""
    if variable.get() is value:
        set_variable(variable, outer)
