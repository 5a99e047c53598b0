"""Deliver trajectories of 8 turns: ``scored_turns.py [NUMBER] [--every-field]``.

Prints the delivery report, and in the last line the delivered spans by step. ``--every-field`` records
first one span that has a value in each field of OpenTelemetry's spans.
"""

import argparse

from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.record import runtime


@rollout_trace_op(kind="LLM")
def turn(text: str) -> str:
    return text[::-1]


def record_every_field() -> None:
    """Record one span outside any trajectory."""
    otel_rollout.configure()
    active = runtime.current()
    assert active is not None
    context = SpanContext(5, 6, True, TraceFlags(1), TraceState([("vendor", "1")]))
    span = active.tracer.start_span(
        "of every field",
        kind=SpanKind.CLIENT,
        attributes={
            "s": "ü",
            "i": 2**62,
            "f": 0.1,
            "b": False,
            "l": ["a", "b"],
            "raw": b"\x00\xff",
            "empty": "",
        },
        links=[Link(context, {"why": "x"})],
    )
    span.add_event("event", {"n": 1, "nan": float("nan")}, timestamp=2)
    span.set_status(StatusCode.ERROR, "bäd")
    span.end()


def main() -> None:
    """Record, and wait for delivery."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int, nargs="?", default=20)
    parser.add_argument("--every-field", action="store_true")
    options = parser.parse_args()
    if options.every_field:
        record_every_field()
    for sample in range(options.number):
        with rollout_trace_attr(sample_index=sample, step=sample % 2, rollout_n=0, validate=sample % 5 == 0):
            for _ in range(8):
                turn("ä\n" + "x" * 500)
            score("reward", sample / 20)
    report = otel_rollout.shutdown(60)
    print(report.summary())
    print(sorted((key.step, key.validate, count.delivered) for key, count in report.by_step.items()))
    assert not report.undelivered, report
    assert not report.lost, report


if __name__ == "__main__":
    main()
