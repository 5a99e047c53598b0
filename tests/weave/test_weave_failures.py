"""Failures of Weave that other backends do not have."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import FailureKind
from otel_rollout_weave import calls, mapping, server
from tests.local_weave import API_KEY
from tests.sdk_spans import decoded, deliver

REFUSED_NAME = "weave:///not an op"
"""An operation name that the server takes for a reference, and refuses: 400, and the whole batch with it."""


def failed(exporter, spans):
    """Export, insist on a failure and return it."""
    assert exporter.export(spans) is SpanExportResult.FAILURE
    assert exporter.last_failure is not None
    return exporter.last_failure


def times_each(calls):
    return set(Counter(call["id"] for call in calls).values())


def post_twice(weave, project, rollouts):
    """Send a batch twice, as a client does that knows no answer."""
    import requests

    from tests.local_weave import ENTITY

    call = mapping.to_call(decoded(rollouts.ended()[-1]), f"{ENTITY}/{project}", None)
    url = f"{weave.url}/v2/{ENTITY}/{project}/calls/complete"
    for _ in range(2):
        body = b'{"batch":[' + call.encoded + b"]}"
        requests.post(url, data=body, auth=("api", API_KEY), timeout=10).raise_for_status()


def test_weaves_store_shows_a_call_twice_that_is_sent_twice(weave, project, rollouts, exporter):
    """So a retry without a query first would double calls."""
    rollouts.trajectory("first")
    deliver(exporter, rollouts.ended())
    for number in range(8):
        rollouts.trajectory(f"doubled {number}")
        post_twice(weave, project, rollouts)
        counts = Counter(call["op_name"] for call in weave.calls(project))
        if 2 in counts.values():
            break

    assert 2 in counts.values()


@pytest.mark.parametrize(("status", "after"), [(503, True), (0, True), (503, False), (429, False)])
def test_call_that_may_be_stored_is_not_doubled_by_a_retry(weave, project, rollouts, exporter, status, after):
    """Each call is there once, whether or not a failed batch was stored."""
    rollouts.trajectory()
    spans = rollouts.ended()
    weave.fail("calls/complete", status, after=after)
    failed(exporter, spans)

    deliver(exporter, spans)

    calls = weave.calls(project)
    assert len(calls) == 3
    assert times_each(calls) == {1}


def test_score_that_may_be_stored_is_not_doubled_by_a_retry(weave, project, rollouts, exporter):
    """The attempt after a feedback request without an answer stores no second score."""
    rollouts.trajectory()
    spans = rollouts.ended()
    weave.fail("feedback/batch/create", 0, after=True)
    failed(exporter, spans)

    deliver(exporter, spans)

    assert [score["payload"]["value"] for score in weave.feedback(project)] == [0.5]
    assert times_each(weave.calls(project)) == {1}


def test_retry_sends_only_calls_that_were_not_acknowledged(weave, project, rollouts, new_exporter):
    """Of a batch in two requests whose second fails, the first is not repeated."""
    for _ in range(4):
        rollouts.trajectory()
    spans = rollouts.ended()
    exporter = new_exporter(max_request_bytes=3000)
    deliver(exporter, spans[:1])
    weave.fail("calls/complete", 429, skip=1)
    received = weave.stats()["calls"]

    failed(exporter, spans)
    deliver(exporter, spans)

    assert weave.stats()["calls"] - received == len(spans) - 1
    assert times_each(weave.calls(project)) == {1}


def test_call_of_a_predecessor_is_not_doubled_after_the_clock_was_set_back(
    weave, project, rollouts, new_exporter, monkeypatch
):
    """A new forwarder whose clock is behind the spans asks before it sends."""
    rollouts.trajectory()
    spans = rollouts.ended()
    deliver(new_exporter(), spans)
    an_hour, real_time_ns = 3600 * 10**9, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_time_ns() - an_hour)
    deliver(new_exporter(), spans)

    assert times_each(weave.calls(project)) == {1}
    assert [score["payload"]["value"] for score in weave.feedback(project)] == [0.5]


def test_refused_call_costs_no_other_call(weave, project, rollouts, exporter):
    """The call at fault is rejected with the server's words.

    A stand-in takes its place.
    """
    with rollouts.span("Agent.run", "AGENT"), rollouts.span(REFUSED_NAME), rollouts.span("below"):
        pass
    spans = rollouts.ended()

    assert failed(exporter, spans).kind is FailureKind.REJECTED
    outcomes = {span.name: exporter.export([span]) for span in spans}
    refusal = failed(exporter, [spans[1]])

    assert [name for name, result in outcomes.items() if result is SpanExportResult.FAILURE] == [REFUSED_NAME]
    assert refusal.kind is FailureKind.REJECTED
    assert "Invalid URI" in refusal.message
    calls = {call["op_name"]: call for call in weave.calls(project)}
    assert set(calls) == {"Agent.run", "refused", "below"}
    assert calls["below"]["parent_id"] == calls["refused"]["id"]
    assert calls["refused"]["exception"] == "Weave refuses this call."


def test_call_that_breaks_the_server_is_told_from_a_failing_server(weave, project, rollouts, exporter):
    """After several 500s a call is rejected if its stand-in passes.

    It is sent again if the stand-in does not pass.
    """
    with rollouts.span("Agent.run"):
        pass
    deliver(exporter, rollouts.ended())
    with rollouts.span("op"):
        pass
    [span] = rollouts.ended()

    weave.fail("calls/complete", 500, times=100)
    assert {failed(exporter, [span]).kind for _ in range(6)} == {FailureKind.UNAVAILABLE}
    weave.recover()
    weave.fail("calls/complete", 500, times=1)
    assert failed(exporter, [span]).kind is FailureKind.REJECTED


def test_wrong_key_is_logged_once_without_the_key(weave, rollouts, new_exporter, caplog):
    """A key that the server does not know is REFUSED.

    The message says how to log in.
    """
    exporter = new_exporter(api_key="0" * 40)
    rollouts.trajectory()
    spans = rollouts.ended()
    for _ in range(3):
        failure = failed(exporter, spans)

    assert failure.kind is FailureKind.REFUSED
    assert "wandb login" in failure.message
    assert "0" * 40 not in failure.message
    assert [record.name for record in caplog.records] == ["otel_rollout_weave.exporter"]
    assert exporter.check().kind is FailureKind.REFUSED


def test_check_passes_with_and_without_the_project_and_fails_elsewhere(
    weave, rollouts, new_exporter, project
):
    """A wrong trace server is REFUSED, naming its variable."""
    assert new_exporter().check() is None
    rollouts.trajectory()
    deliver(new_exporter(), rollouts.ended())
    assert new_exporter(project=project).check() is None
    elsewhere = new_exporter(trace_server_url=f"{weave.url}/nowhere").check()
    assert elsewhere.kind is FailureKind.REFUSED
    assert "WF_TRACE_SERVER_URL" in elsewhere.message


def test_deleted_project_is_created_again(weave, project, rollouts, exporter):
    """The project is looked up again after the server said that it is gone."""
    rollouts.trajectory()
    deliver(exporter, rollouts.ended())
    weave.forget_projects()
    rollouts.trajectory("after")
    spans = rollouts.ended()

    assert project in failed(exporter, spans).message
    deliver(exporter, spans)

    assert len(weave.calls(project)) == 6


def test_server_without_running_calls_gets_no_further_announcement(weave, project, rollouts, exporter):
    """The trajectory arrives when it ends."""
    weave.fail("call/start", 404, times=1)
    with rollouts.span("Agent.run", "AGENT") as root:
        exporter.announce([root])
        exporter.announce([root])
    deliver(exporter, rollouts.ended())

    assert [call["op_name"] for call in weave.calls(project)] == ["Agent.run"]


def test_span_that_cannot_be_encoded_is_rejected(rollouts, exporter, monkeypatch):
    """Bisecting then finds it."""

    def broken(*_):
        raise TypeError("no such value")

    rollouts.trajectory()
    monkeypatch.setattr(mapping, "to_call", broken)

    assert failed(exporter, rollouts.ended()).kind is FailureKind.REJECTED


def test_export_imports_neither_weave_nor_wandb(environment):
    """The exporter sets nothing global."""
    program = (
        "import sys; from opentelemetry import trace; before = trace.get_tracer_provider(); "
        "from otel_rollout_weave import WeaveSpanExporter; WeaveSpanExporter().export([]); "
        "print('weave' in sys.modules, 'wandb' in sys.modules, trace.get_tracer_provider() is before)"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert output.stdout.split() == ["False", "False", "True"]


def test_requests_are_bounded_in_bytes_and_calls(rollouts):
    """Calls that do not fit one request go in several, and a larger call goes alone."""
    with rollouts.span("Agent.run", "AGENT"):
        for size in (20_000, 4_000, 4_000, 4_000, 4_000):
            with rollouts.span("generate", "LLM", input__value="x" * size):
                pass
    mapped = [mapping.to_call(decoded(span), "e/p", None) for span in rollouts.ended()]

    batches = calls.requests_of(mapped, max_bytes=11_000)

    assert [call for batch in batches for call in batch] == mapped
    sizes = [sum(len(call.encoded) for call in batch) for batch in batches]
    assert [len(batch) for batch, size in zip(batches, sizes, strict=True) if size > 11_000] == [1]
    assert max(len(batch) for batch in calls.requests_of(mapped * 500)) == calls.MAX_CALLS


def test_memory_of_sent_calls_is_bounded(new_exporter):
    """An exporter whose caller never sends a failed batch again does not grow."""
    memory = new_exporter()._calls._sent
    for number in range(2 * server.MAX_REMEMBERED):
        memory[str(number)] = True
    assert len(memory) == server.MAX_REMEMBERED
