"""Join the spans of other libraries: inside a trajectory, any OpenTelemetry tracer records.

While nobody has set a tracer provider, OpenTelemetry's API hands out proxies, whose spans do nothing. This
module replaces the property by which a proxy looks for its real tracer. The replacement returns that tracer
if there is one, as before; else it returns a :class:`JoinedTracer`. The application may set its provider at
any time: the API's variable stays free. A ``NoOpTracer`` that a library holds is left alone: PydanticAI holds
one where its instrumentation is off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind, Tracer, TracerProvider

from otel_rollout.base.errors import fault, internal_errors, warn_once
from otel_rollout.base.patching import Patches, when_imported
from otel_rollout.otlp.writer import AttributeInput, text_of
from otel_rollout.record.recording import content, doubles, joined_span, runtime_context
from otel_rollout.record.recording.application import sdk_provider_in
from otel_rollout.record.recording.entered import present_context
from otel_rollout.record.recording.identity import identity_in
from otel_rollout.record.recording.joined_span import JoinedSpan, end_never_ended, is_model_call
from otel_rollout.record.recording.provider import BlockTracer, Place, RecordingTracer
from otel_rollout.record.recording.runtime_context import span_above
from otel_rollout.record.recording.span import RecordingSpan
from otel_rollout.record.recording.state import Recorder, state

_OURS: Final = "_otel_rollout_joined"
"""Attribute of a proxy that holds the delegate that this package has made for it."""


class JoinedScope(NamedTuple):
    """An instrumentation scope, as the arguments of ``get_tracer``."""

    name: str
    version: str | None = None
    schema_url: str | None = None
    attributes: Any = None


class JoinedTracer(BlockTracer):
    """Records spans inside trajectories; other spans are left to another tracer.

    Args:
        scope: the instrumentation scope.
        outside: starts the spans outside any trajectory: a no-op, or the application's tracer.
    """

    def __init__(self, scope: JoinedScope, outside: Tracer) -> None:
        self._scope = scope
        self._outside = outside
        self._recorder: tuple[RecordingTracer, content.ContentLimits] | None = None

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeInput] | None = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """Start a span, in the trajectory of the context (OpenTelemetry's API)."""
        try:
            exceptions = (record_exception, set_status_on_exception)
            span = self.joined(text_of(name), context, attributes, exceptions)
            if isinstance(span, JoinedSpan):
                span.set_start(kind, links, start_time)
            if span is not None:
                return span
        except Exception as error:  # noqa: BLE001 - we are inside user code
            fault("joining a span of another library", error)
        given: Any = attributes
        return self._outside.start_span(
            name, context, kind, given, links, start_time, record_exception, set_status_on_exception
        )

    def joined(
        self,
        name: str,
        context: Context | None,
        attributes: Mapping[str, AttributeInput] | None,
        exceptions: tuple[bool, bool] = (True, True),
    ) -> Span | None:
        """Return a span of the trajectory in a context; None outside any trajectory.

        A :class:`JoinedSpan` is recorded; any other span is not.
        """
        parent = span_above(context if context is not None else present_context())
        above = parent if isinstance(parent, RecordingSpan) else None  # or a wrapper, as OpenInference's
        identity = above.identity if above is not None else identity_in(context)
        if not identity.attributes:
            return parent if _is_unrecorded(parent) else None
        active = state.current_runtime()
        if active is None:
            return None
        end_never_ended()
        given: Any = attributes  # `isinstance` would ask it, which may raise
        if above is not None and issubclass(type(given), Mapping) and is_model_call(given):
            if isinstance(above, JoinedSpan) and above.is_model_call:
                doubles.report_nested(above.scope_name, self._scope.name)
                return NonRecordingSpan(above.get_span_context())
            doubles.give_way(above, self._scope.name)
        tracer, limits = self._recorder_of(active)
        if above is not None:
            head = above.head_below or above.begin_below()
            place: Place | None = (above.trace_id, head, above.trace_state)
        else:
            place = tracer.place(parent, name)
        if place is None:
            return parent if _is_unrecorded(parent) else tracer.unrecorded(parent)
        trace_id, head, trace_state = place
        span = JoinedSpan(
            tracer,
            name,
            trace_id,
            head,
            identity,
            parent=above,
            scope_name=self._scope.name,
            content_limits=limits,
            exceptions=exceptions,
        )
        span.trace_state = trace_state
        if attributes is not None:
            span.set_attributes(attributes)
        return span

    def _recorder_of(self, active: Recorder) -> tuple[RecordingTracer, content.ContentLimits]:
        """Return the tracer of the present run for this scope, and the limits of its content."""
        recorder = self._recorder
        if recorder is None or recorder[0].provider is not active.provider:
            doubles.report_instrumentors()
            limits = content.limits_of(active.settings)
            recorder = self._recorder = active.provider.get_tracer(*self._scope), limits
        return recorder


def _is_unrecorded(span: Span) -> bool:
    """Return whether a span says that nothing below it is recorded."""
    if not isinstance(span, NonRecordingSpan):  # ddtrace decides about sampling when asked for a context
        return False
    context = span.get_span_context()
    return context.is_valid and not context.trace_flags.sampled


# --- The provider that applications hand to instrumentors ---------------------------------------------------


class ProvidedTracer(JoinedTracer):
    """A tracer of :func:`otel_rollout.tracer_provider`.

    If the application has set a provider of OpenTelemetry's SDK, a tracer of that provider starts every span.
    So the application's own backend gets the span, too. A span processor records spans inside trajectories.
    """

    def __init__(self, scope: JoinedScope) -> None:
        super().__init__(scope, trace.NoOpTracer())
        self._provider: TracerProvider | None = None
        self._application: Tracer | None = None

    def start_span(self, *args: Any, **kwargs: Any) -> Span:
        """Start a span (OpenTelemetry's API)."""
        with internal_errors("looking for the application's provider"):
            self._look_for_provider()
        if self._application is not None:
            return self._application.start_span(*args, **kwargs)
        return super().start_span(*args, **kwargs)

    def _look_for_provider(self) -> None:
        provider = trace.get_tracer_provider()
        if provider is self._provider or isinstance(provider, _WITHOUT_TRACERS):
            return
        tracer = provider.get_tracer(*self._scope)
        if sdk_provider_in(provider) is not None:
            _join_application()
            self._application = tracer
        self._outside = tracer
        self._provider = provider


class JoinedTracerProvider(TracerProvider):
    """Makes tracers whose spans belong to trajectories: for instrumentors' ``tracer_provider``."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Mapping[str, AttributeInput] | None = None,
    ) -> Tracer:
        """Return a tracer for one instrumentation scope."""
        return ProvidedTracer(
            JoinedScope(instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        )


_WITHOUT_TRACERS: Final = (JoinedTracerProvider, trace.ProxyTracerProvider)
"""Providers whose tracers lead back to this module, or nowhere."""


# --- The seams in OpenTelemetry's API -----------------------------------------------------------------------


def install() -> None:
    """Join the tracers that OpenTelemetry's API hands out; a second call does nothing. Never raises."""
    with state.lock, internal_errors("joining OpenTelemetry's tracers"):
        if state.join_patches is not None:
            return
        patches = state.join_patches = Patches()
        missing = problem()
        if missing:
            warn_once(missing)
            return
        patches.replace(trace.ProxyTracer, "_tracer", _joining(patches, "_noop_tracer", _tracer_for))
        if "_set_tracer_provider" in vars(trace):
            patches.replace(trace, "_set_tracer_provider", functools.partial(_noticing_provider, patches))
        when_imported(runtime_context.DDTRACE, functools.partial(runtime_context.note_spans_above, patches))
        for module, class_, name in joined_span.SEAMS:
            when_imported(module, functools.partial(_join_events, patches, class_, name))


def uninstall() -> None:
    """Restore OpenTelemetry's API."""
    with state.lock:
        if state.join_patches is not None:
            state.join_patches.undo()
            state.join_patches = None


def problem() -> str:
    """Return why other libraries' spans are lost without a provider; empty if they are not."""
    proxy = getattr(trace, "ProxyTracer", None)
    if isinstance(vars(proxy).get("_tracer") if proxy is not None else None, property):
        try:
            if hasattr(trace.ProxyTracer("otel-rollout"), "_noop_tracer"):
                return ""
        except TypeError:  # other arguments than in the versions that are known
            pass
    from importlib.metadata import version

    return (
        f"opentelemetry-api {version('opentelemetry-api')} has no ProxyTracer._tracer, so spans of other "
        "libraries are not recorded unless their instrumentors get "
        "tracer_provider=otel_rollout.tracer_provider() or the application sets a tracer provider"
    )


def _joining(patches: Patches, noop: str, make: Callable[[Any], Any]) -> Callable[[property], property]:
    """Return a function that replaces the property by which a proxy looks for its delegate.

    Args:
        patches: active while the replacement is in force.
        noop: name of the proxy's attribute with the delegate that does nothing.
        make: makes a delegate of ours for a proxy.
    """

    def replace(original: property) -> property:
        find = original.fget
        assert find is not None

        def delegate(self: Any) -> Any:
            found = find(self)
            if found is not vars(self).get(noop) or not patches.active:
                return found
            ours = vars(self).get(_OURS)
            if ours is None:
                ours = vars(self)[_OURS] = make(self)
            return ours

        return property(delegate)

    return replace


def _tracer_for(proxy: Any) -> Tracer:
    scope = JoinedScope(
        proxy._instrumenting_module_name,
        getattr(proxy, "_instrumenting_library_version", None),
        getattr(proxy, "_schema_url", None),
        getattr(proxy, "_attributes", None),
    )
    return JoinedTracer(scope, proxy._noop_tracer)


def _join_events(patches: Patches, class_: str, name: str, module: ModuleType) -> None:
    proxy = getattr(module, class_, None)
    if patches.active and isinstance(getattr(proxy, name, None), property):
        patches.replace(proxy, name, _joining(patches, f"_noop{name}", joined_span.JoinedLogger))


def _noticing_provider(patches: Patches, original: Callable[..., None]) -> Callable[..., None]:
    """Record the spans of the application's provider from the moment in which it is set."""

    @functools.wraps(original)
    def set_provider(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if patches.active:
            _join_application()

    return set_provider


@internal_errors("joining the application's tracer provider")
def _join_application() -> None:
    active: Recorder | None = state.runtime
    if active is not None:
        active.application_tracer()
