"""Which traces are recorded, by OpenTelemetry's own samplers (``OTEL_TRACES_SAMPLER``)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

GROUP = "opentelemetry_traces_sampler"
Decision = Callable[[int, str], bool]
"""Whether the trace with this id, whose first span has this name, is recorded."""


def decision_of(name: str, argument: str) -> Decision | None:
    """The decision that a sampler takes for traces that begin with us; None when all are recorded.

    Below a span that exists already its decision holds, whatever the sampler: a trace is recorded whole or
    not at all.

    Args:
        name: as in ``OTEL_TRACES_SAMPLER``.
        argument: as in ``OTEL_TRACES_SAMPLER_ARG``.

    Raises:
        ValueError: for a sampler that does not exist, or an argument it does not take.
    """
    kind = name.removeprefix("parentbased_")
    if kind == "always_on":
        return None
    if kind == "always_off":
        return lambda trace_id, span_name: False
    sampler = _ratio(argument) if kind == "traceidratio" else _installed(name, argument)
    from opentelemetry.sdk.trace.sampling import Decision as SdkDecision

    recorded = SdkDecision.RECORD_AND_SAMPLE
    return lambda trace_id, span_name: sampler.should_sample(None, trace_id, span_name).decision is recorded


def _ratio(argument: str) -> Sampler:
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    try:
        return TraceIdRatioBased(float(argument or 1))
    except ValueError:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG={argument!r} is no share from 0 to 1") from None


def _installed(name: str, argument: str) -> Sampler:
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)}))
        raise ValueError(f"OTEL_TRACES_SAMPLER={name!r} is not installed; known are {known}")
    try:
        sampler: Sampler = found[0].load()(argument)
    except Exception as error:
        raise ValueError(f"OTEL_TRACES_SAMPLER={name!r} cannot be set up: {error}") from error
    return sampler
