"""Record an operation whose result becomes known only after its code has returned."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.base.errors import Unusable, internal_errors
from otel_rollout.base.finalizers import current_context
from otel_rollout.base.given import reading
from otel_rollout.integrations.kit.spans import fail, put_value, set_attributes
from otel_rollout.record import runtime
from otel_rollout.record.capture import span_io


class OpenOperation:
    """An operation that starts now, below the current span of a context.

    Args:
        name: name of the span.
        kind: OpenInference span kind, one of ``semconv.SPAN_KINDS``.
        context: context of the operation's trajectory; nothing is recorded if the context's span does not
            record.
        input: what the operation takes; None records nothing.
        attributes: further attributes; those with the value None are left out.
        start_ns: Unix time in ns at which it started, if that is not now.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        context: Context,
        *,
        input: Any = None,
        attributes: Mapping[str, Any] | None = None,
        start_ns: int | None = None,
    ) -> None:
        self._span: Span | None = None
        self._context = context
        with internal_errors("starting an operation of a trajectory"):
            active = runtime.current()
            with reading("context="):
                parent = trace.get_current_span(context)
            with reading("kind="):
                if kind not in semconv.SPAN_KINDS:
                    raise Unusable("is no kind of a span")
            if active is None or not parent.get_span_context().is_valid:
                return
            span = span_io.start(active, name, kind, parent, context, start_ns)
            if span is None:
                return
            self._span, self._context = span, trace.set_span_in_context(span, context)
            put_value(span, semconv.INPUT_VALUE, input)
            if attributes is not None:
                self.describe(attributes)

    def inside(self) -> AbstractContextManager[None]:
        """Make the operation current in this thread or task."""
        return current_context(self._context)

    @internal_errors("describing an operation of a trajectory")
    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Set the attributes whose value is not None. Never raises."""
        if self._span is not None:
            set_attributes(self._span, attributes)

    @internal_errors("ending an operation of a trajectory")
    def end(
        self, *, output: Any = None, error: BaseException | str | None = None, end_ns: int | None = None
    ) -> None:
        """End the operation; further calls have no effect. Never raises.

        Args:
            output: what the operation gave; None records nothing.
            error: the exception, or the message, with which it failed.
            end_ns: Unix time in ns at which it ended, if that is not now.
        """
        span, self._span = self._span, None
        if span is None:
            return
        try:
            put_value(span, semconv.OUTPUT_VALUE, output)
            if error is not None:
                fail(span, error)
        finally:
            span.end(end_ns)
