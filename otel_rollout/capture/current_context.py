"""OpenTelemetry's current context, asked where it lies.

The API's own ``get_current`` and ``attach`` are two calls of Python each around those of a ``ContextVar``; an
operation needs five of them, and takes a twentieth less without. The variable is no part of the API: where it
is not found, or another context was chosen (``OTEL_PYTHON_CONTEXT``), these are the API's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

SPAN: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, context.Context())))
"""Under what a context holds its span: so that span and other things are put into one with one copy."""


def _found() -> tuple[Callable[[], context.Context], Callable[[context.Context], Any]]:
    holder = getattr(context, "_RUNTIME_CONTEXT", None)
    variable = getattr(holder, "_current_context", None)
    if type(holder) is ContextVarsRuntimeContext and type(variable) is ContextVar:
        return variable.get, variable.set
    return context.get_current, context.attach


get_current, attach = _found()
