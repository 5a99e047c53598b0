"""Trajectories whose model calls have the spans of a vLLM server, recorded by the receiver's code.

    python -m tests.engine_spans DIRECTORY

writes a small table of them, for docs/engines.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import received, received_json, writer
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.otlp.span import Span
from otel_rollout.record.recording.identity import Identity
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of, rows_of
from otel_rollout.table.store import Store

START_NS = 1_767_225_600_000_000_000
SECOND = 1_000_000_000
SCOPE = "vllm.tracing.otel"
LATENCIES = (
    semconv.LATENCY_QUEUE,
    semconv.LATENCY_PREFILL,
    semconv.LATENCY_DECODE,
    semconv.LATENCY_FIRST_TOKEN,
    semconv.LATENCY_TOTAL,
)


class Call(NamedTuple):
    """A model call, which takes 0.6 s more than the request in the engine, and what vLLM says of its request.

    Attributes:
        queue: seconds.
        prefill: seconds.
        decode: seconds.
        tokens: names of the counts on the engine's span.
        requests: number of requests.
        kind: kind of the request's span; this package records one for an engine in its own process.
    """

    queue: float = 0.12
    prefill: float = 0.08
    decode: float = 1.2
    tokens: tuple[str, str] = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens")
    requests: int = 1
    kind: str = ""


def trajectory(
    calls: Sequence[Call],
    project: str = "engines",
    step: int = 1,
    rollout: int = 0,
    trace: int = 1,
    sample: int = 7,
) -> list[bytes]:
    """Return the lines of a trajectory with these model calls, each of 233 tokens in and 46 out."""
    identity = {
        semconv.PROJECT_NAME: project,
        semconv.EXPERIMENT_NAME: "grpo",
        semconv.STEP: step,
        semconv.SAMPLE_INDEX: sample,
        semconv.ROLLOUT_N: rollout,
        semconv.VALIDATE: False,
    }
    start, number = START_NS + step * 60 * SECOND + trace % 1000 * SECOND // 8, trace * 1000
    lines, begin = [], start
    for place, call in enumerate(calls):
        begin, id_ = begin + SECOND, number + 10 * place + 2
        length = round((max(call.queue, 0) + max(call.prefill, 0) + max(call.decode, 0) + 0.6) * SECOND)
        attributes = {
            semconv.SPAN_KIND: semconv.KIND_LLM,
            semconv.GEN_AI_REQUEST_MODEL: "tiny",
            semconv.GEN_AI_USAGE_INPUT_TOKENS: 233,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 46,
            semconv.OUTPUT_VALUE: "It is 42.",
        }
        lines += _recorded("", "generate", trace, id_, number + 1, begin, length, attributes, identity)
        for request in range(call.requests):
            lines += _recorded(
                SCOPE, semconv.ENGINE_REQUEST, trace, id_ + request + 1, id_, begin + 100 + request,
                length - SECOND // 2, _of_vllm(call), identity,
            )  # fmt: skip
        begin += length
    root = {semconv.SPAN_KIND: semconv.KIND_AGENT}
    end = begin + SECOND - start
    return lines + _recorded("", "agent_loop", trace, number + 1, 0, start, end, root, identity)


def spans_in(lines: Sequence[bytes]) -> list[Span]:
    """Return the spans of lines."""
    return [span for line in lines for span in spans_of(line)]


def _of_vllm(call: Call) -> dict[str, Any]:
    """Return the attributes that vLLM 0.32 gives a request's span."""
    first_token = call.queue + call.prefill
    times = (call.queue, call.prefill, call.decode, first_token, first_token + call.decode + 0.01)
    counts = dict(zip(call.tokens, (233, 46), strict=True))
    kind = {semconv.SPAN_KIND: call.kind} if call.kind else {}
    known = {name: time for name, time in zip(LATENCIES, times, strict=True) if time >= 0}
    return {**kind, **known, **counts, "gen_ai.request.id": "chatcmpl-1", "gen_ai.request.n": 1}


def _recorded(
    scope: str, name: str, trace: int, id_: int, parent: int, start: int, length: int,
    attributes: Mapping[str, Any], identity: Mapping[str, Any],
) -> list[bytes]:  # fmt: skip
    """Return the line of a span and those of its engine phases, as the receiver records them."""
    span = {
        "traceId": f"{trace:032x}",
        "spanId": f"{id_:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + length),
        "attributes": orjson.loads(writer.attribute_list(attributes)),
    }
    request = {
        "resourceSpans": [{"scopeSpans": [{"scope": {"name": scope or semconv.SCOPE}, "spans": [span]}]}]
    }
    (of_scope,) = received_json.scopes_of(request)
    (decoded,) = map(of_scope.decode, of_scope.spans)
    known = Identity(identity)
    line = received.line_of(of_scope, decoded, writer.attribute_list(identity)[1:-1])
    phases = received.phase_lines_of(decoded, known.encode())
    head = writer.open_resource_head({semconv.RUN_ID: "run-1"}) + of_scope.resource.head
    return [head + each for each in (line, *phases)]


def write_table(place: Path) -> None:
    """Write a table of six steps with eight trajectories each; from step 4 on the engine is too busy."""
    lines = [
        line
        for step, queue in enumerate((0.12, 0.13, 0.12, 2.5, 2.6, 2.5), 1)
        for number in range(8)
        for line in trajectory(
            [Call(queue=queue)] * 2,
            step=step,
            sample=number // 4,
            rollout=number % 4,
            trace=8 * step + number,
        )
    ]
    Store(location_of(str(place))).append([batch_of(rows_of(spans_in(lines)))], "tests", 0)


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
