"""Describe an exception as text; never raise, even if the exception's own methods do."""

from __future__ import annotations

import traceback

from otel_rollout.base.errors import pass_on

MAX_EXCEPTION_TEXT = 64 << 10
"""Maximum characters recorded of an exception's message, and of its stack. The middle of longer text is
cut."""
_QUALNAME_OF_TYPE = type.__dict__["__qualname__"].__get__


def qualified_name(type_: type) -> str:
    """Return the name of a class as OpenTelemetry writes exception types, without a call of its metaclass."""
    module, name = type.__getattribute__(type_, "__module__"), str(_QUALNAME_OF_TYPE(type_))
    return name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}"


_MEANINGS = {"CancelledError": "the task was cancelled", "GeneratorExit": "it was closed before its end"}
"""Messages for exceptions that usually have none."""


def status_message(exception: BaseException) -> str:
    """Return the status message of a span that ended with an exception."""
    type_name = type(exception).__name__
    message = message_of(exception) or _MEANINGS.get(type_name, "")
    return f"{type_name}: {message}" if message else type_name


def message_of(exception: BaseException) -> str:
    """Return an exception's message, cut; never raise, even if its ``__str__`` does."""
    try:
        return _cut(str(exception))
    except Exception as error:  # noqa: BLE001 - a user's __str__ may do anything
        pass_on(error)
        return "<its message could not be read>"


def stack_of(exception: BaseException) -> str:
    """Return an exception's stack as Python prints it, cut."""
    try:
        return _cut("".join(traceback.format_exception(type(exception), exception, exception.__traceback__)))
    except Exception as error:  # noqa: BLE001 - formatting calls the user's __str__
        pass_on(error)
        return "".join(traceback.format_tb(exception.__traceback__))


def _cut(text: str) -> str:
    if len(text) <= MAX_EXCEPTION_TEXT:
        return text
    half = MAX_EXCEPTION_TEXT // 2
    return f"{text[:half]}… ({len(text) - 2 * half} more characters) …{text[-half:]}"
