"""Offer the counts of the delivery report as OpenTelemetry metrics.

An application that has set a MeterProvider gets these metrics. Each process reports the spans that it has
recorded. The run's first process also reports the spans that its machine has delivered. Counts are computed
only when a reader asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from otel_rollout.account.report import ExporterCount
from otel_rollout.base.version import VERSION
from otel_rollout.record.recording.writer import SegmentWriter

Observe = Callable[[CallbackOptions], Iterable[Observation]]


def offer(
    writer: Callable[[], SegmentWriter | None], delivered: Callable[[], Mapping[str, ExporterCount]]
) -> None:
    """Create the instruments.

    Call this once per process, without holding a lock that ``writer`` or ``delivered`` takes.

    Args:
        writer: returns the present writer of this process, or None.
        delivered: returns exporter → counts of this machine; empty in processes that do not report them.
    """
    meter = metrics.get_meter("otel_rollout", VERSION)

    def own(value: Callable[[SegmentWriter], Iterable[Observation]]) -> Observe:
        return lambda _: () if (current := writer()) is None else value(current)

    def delivery(value: Callable[[ExporterCount], int]) -> Observe:
        return lambda _: [Observation(value(of), {"exporter": name}) for name, of in delivered().items()]

    for name, unit, described, observe in (
        ("started", "{span}", "Spans started", own(lambda w: [Observation(w.counts().started)])),
        ("recorded", "{span}", "Spans recorded", own(lambda w: [Observation(w.counts().recorded)])),
        ("dropped", "{span}", "Spans not recorded, by reason", own(lambda w: _by_reason(w.counts().drops))),
        (
            "sampled_out",
            "{trajectory}",
            "Trajectories not recorded on purpose, by reason",
            own(lambda w: _by_reason(w.counts().skips)),
        ),
        ("delivered", "{span}", "Spans that a target has acknowledged", delivery(lambda c: c.delivered)),
        ("rejected", "{span}", "Spans that a target refuses for good", delivery(lambda c: c.rejected)),
        ("retried", "{batch}", "Batches sent again", delivery(lambda c: c.retried)),
    ):
        meter.create_observable_counter(f"otel_rollout.{name}", [observe], unit, described)


def _by_reason(counts: dict[str, int]) -> list[Observation]:
    return [Observation(number, {"reason": reason}) for reason, number in counts.items() if number]
