"""Which traces are recorded: by OpenTelemetry's own samplers (``OTEL_TRACES_SAMPLER``), or by group."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from otel_rollout import semconv

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

    from otel_rollout.record.identity import Identity

GROUP = "opentelemetry_traces_sampler"
_GROUP = (semconv.EXPERIMENT_NAME, semconv.STEP, semconv.SAMPLE_INDEX, semconv.VALIDATE)
Decision = Callable[[int, str], bool]
"""Whether the trace with this id, whose first span has this name, is recorded."""


def place_of_group(identity: Identity) -> float:
    """A number from 0 to 1 that is the same for all trajectories of a group, in whatever process they run.

    A group is what was sampled for one dataset row in one step. Numbers of groups are spread evenly, and
    those of trajectories that name neither row nor step are all one.
    """
    named = [identity.attributes.get(key) for key in _GROUP]
    digest = hashlib.blake2b(repr(named).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / (1 << 64)


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
