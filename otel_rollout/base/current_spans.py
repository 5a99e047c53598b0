"""The decorator with which OpenTelemetry's API makes ``start_as_current_span``."""

try:  # as a decorator of a coroutine, it waits for the coroutine's end
    from opentelemetry.util._decorator import _agnosticcontextmanager as span_context
except ImportError:  # a version of the API without this private name
    from contextlib import contextmanager as span_context  # type: ignore[assignment]

__all__ = ["span_context"]
