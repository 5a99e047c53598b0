"""Model calls of the tests, and the engine's spans below them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import httpx

from otel_rollout import rollout_trace_op
from otel_rollout.base import semconv
from otel_rollout.otlp.engine_phases import PHASES
from tests.spool_reader import Recorded
from tests.vllm.recording_run import Run

SECONDS = 300
"""Timeout of a request."""


@rollout_trace_op(name="call", kind="LLM")
def call(url: str, body: Mapping[str, Any]) -> Any:
    """Post a request; return the response, or the number of an error's status."""
    response = httpx.post(url, json=body, timeout=SECONDS)
    return response.json() if response.status_code == 200 else response.status_code


@rollout_trace_op(name="call", kind="LLM")
async def call_async(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> Any:
    """Post a request; return the response."""
    return (await client.post(url, json=body, timeout=SECONDS)).raise_for_status().json()


@rollout_trace_op(name="call", kind="LLM")
async def stream(url: str, body: Mapping[str, Any]) -> AsyncIterator[str]:
    """Post a request for a stream; yield its lines."""
    async with (
        httpx.AsyncClient(timeout=SECONDS) as client,
        client.stream("POST", url, json={**body, "stream": True}) as response,
    ):
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line:
                yield line


class Joined(NamedTuple):
    """A request in the engine.

    Attributes:
        call: the span of the model call; None if the engine's span has no parent in the run.
        engine: the engine's span.
        phases: the spans of its phases.
    """

    call: Recorded | None
    engine: Recorded
    phases: list[Recorded]


def joined(spans: list[Recorded]) -> list[Joined]:
    """Return the engine's requests among the recorded spans, each with its call and its phases."""
    by_id = {(each.span.trace_id, each.span.span_id): each for each in spans}
    assert len(by_id) == len(spans), "a span is recorded twice"
    below: dict[bytes, list[Recorded]] = {}
    for each in spans:
        if semconv.ENGINE_PHASE in each.attributes:
            below.setdefault(each.span.parent_span_id, []).append(each)
    engines = [each for each in spans if each.name == semconv.ENGINE_REQUEST]
    assert set(below) <= {engine.span.span_id for engine in engines}
    return [
        Joined(
            by_id.get((engine.span.trace_id, engine.span.parent_span_id)),
            engine,
            below.get(engine.span.span_id, []),
        )
        for engine in engines
    ]


def wait_for_requests(run: Run, number: int) -> list[Joined]:
    """Wait until the run has this number of requests in the engine with all their phases; return them."""

    def are_there(spans: list[Recorded]) -> bool:
        found = joined(spans)
        return len(found) >= number and all(len(each.phases) == len(PHASES) for each in found)

    found = joined(run.wait(are_there, f"{number} requests in the engine"))
    assert len(found) == number
    for each in found:
        check_phases(each)
    return found


def check_phases(request: Joined) -> None:
    """Check that the phases lie inside the request, in order and without gaps, with the engine's times."""
    engine, phases = request.engine.span, [phase.span for phase in request.phases]
    assert [phase.name for phase in phases] == list(PHASES)
    assert engine.start_time_unix_nano <= phases[0].start_time_unix_nano
    assert phases[-1].end_time_unix_nano <= engine.end_time_unix_nano
    for phase, following in pairwise(phases):
        assert phase.end_time_unix_nano == following.start_time_unix_nano
    attributes = request.engine.attributes
    said = [
        attributes[key] for key in (semconv.LATENCY_QUEUE, semconv.LATENCY_PREFILL, semconv.LATENCY_DECODE)
    ]
    assert seconds_of(request) == [round(seconds, 9) for seconds in said]
    identity = {key: value for key, value in attributes.items() if key in semconv.IDENTITY}
    for phase in request.phases:
        assert phase.span.trace_id == engine.trace_id
        assert {key: phase.attributes.get(key) for key in identity} == identity


def seconds_of(request: Joined) -> list[float]:
    """Return the lengths of a request's phases."""
    return [
        (phase.span.end_time_unix_nano - phase.span.start_time_unix_nano) / 1e9 for phase in request.phases
    ]
