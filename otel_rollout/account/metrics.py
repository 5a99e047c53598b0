"""The account as OpenTelemetry metrics, for applications that have set a MeterProvider.

Every process reports what it recorded itself; the run's first process what its machine delivered. Nothing is
computed but when a reader asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from otel_rollout.account.report import DeliveryCount
from otel_rollout.base.version import VERSION
from otel_rollout.recording.writer import SegmentWriter

Observe = Callable[[CallbackOptions], Iterable[Observation]]


def offer(
    writer: Callable[[], SegmentWriter | None], delivered: Callable[[], Mapping[str, DeliveryCount]]
) -> None:
    """Create the instruments; to be called once in a process, without a lock that the arguments take.

    Args:
        writer: what this process records with at present.
        delivered: exporter → what was counted on this machine, in the process that reports it.
    """
    meter = metrics.get_meter("otel_rollout", VERSION)

    def own(value: Callable[[SegmentWriter], Iterable[Observation]]) -> Observe:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            current = writer()
            return value(current) if current is not None else ()

        return observe

    def delivery(value: Callable[[DeliveryCount], int]) -> Observe:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value(count), {"exporter": name}) for name, count in delivered().items()]

        return observe

    for name, unit, described, observe in (
        ("started", "{span}", "Spans begun", own(lambda w: [Observation(w.counts().started)])),
        ("recorded", "{span}", "Spans recorded", own(lambda w: [Observation(w.counts().recorded)])),
        (
            "dropped",
            "{span}",
            "Spans not recorded, by reason",
            own(lambda w: _by_reason(w.counts().drops)),
        ),
        ("left_out", "{trajectory}", "Trajectories left out", own(lambda w: _by_reason(w.counts().skips))),
        ("delivered", "{span}", "Spans a target has acknowledged", delivery(lambda c: c.delivered)),
        ("rejected", "{span}", "Spans a target refuses for good", delivery(lambda c: c.rejected)),
        ("retried", "{batch}", "Batches sent again", delivery(lambda c: c.retried)),
    ):
        meter.create_observable_counter(f"otel_rollout.{name}", [observe], unit, described)


def _by_reason(counts: dict[str, int]) -> list[Observation]:
    return [Observation(number, {"reason": reason}) for reason, number in counts.items() if number]
