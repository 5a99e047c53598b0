"""Spans as the Collector sends them to MLflow."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from otel_rollout_mlflow.tags import trace_tags
from tests.collector.test_langfuse import spans_in
from tests.fake_server import serving
from tests.spool_reader import plain_attributes
from tests.waiting import wait_for

USAGE = "mlflow.chat.tokenUsage"


def test_only_model_calls_have_usage(collector: Any) -> None:
    """MLflow reads the counts of spans of other kinds, unless something else says their usage."""
    spans = [
        {
            "traceId": "a" * 32,
            "spanId": f"{number:016x}",
            "name": kind,
            "startTimeUnixNano": "1790000000000000000",
            "endTimeUnixNano": "1790000001000000000",
            "attributes": [
                {"key": "openinference.span.kind", "value": {"stringValue": kind}},
                *counts,
            ],
        }
        for number, (kind, counts) in enumerate(
            [("LLM", counts_of(5)), ("CHAIN", counts_of(50)), ("AGENT", [])], start=1
        )
    ]
    found = sent_of(spans, collector)

    assert {name: given.get(USAGE) for name, given in found.items()} == {
        "LLM": None,
        "CHAIN": "",
        "AGENT": None,
    }
    assert found["CHAIN"]["gen_ai.usage.output_tokens"] == 50


def test_tag_validate_is_that_of_our_exporter(collector: Any) -> None:
    """It is `True` or `False`, and a root whose attribute is no boolean has none."""
    given = {"yes": {"boolValue": True}, "no": {"boolValue": False}, "text": {"stringValue": "true"}}
    spans = [
        {
            "traceId": f"{number:032x}",
            "spanId": "b" * 16,
            "name": name,
            "startTimeUnixNano": "1790000000000000000",
            "endTimeUnixNano": "1790000001000000000",
            "attributes": [{"key": "rollout.validate", "value": value}],
        }
        for number, (name, value) in enumerate(given.items(), start=1)
    ]

    tags = {name: found.get("mlflow.traceTag.validate") for name, found in sent_of(spans, collector).items()}

    expected = {"yes": True, "no": False, "text": "true"}
    assert tags == {
        name: trace_tags({"rollout.validate": value}).get("validate") for name, value in expected.items()
    }


def sent_of(spans: list[dict[str, Any]], collector: Any) -> dict[str, dict[str, Any]]:
    """Send spans through the Collector; return the attributes that MLflow gets, by the spans' names."""
    sent = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}
    with serving({"/v1/traces": (200, {"Content-Type": "application/x-protobuf"}, b"")}) as mlflow:
        running = collector("local.yaml", "to-mlflow.yaml", MLFLOW_TRACKING_URI=mlflow.uri)
        request = urllib.request.Request(
            f"{running.endpoint}/v1/traces", json.dumps(sent).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=30).close()
        wait_for(lambda: len(spans_in(mlflow.received)) >= len(spans), what="every span")
        return {span.name: plain_attributes(span.attributes) for span in spans_in(mlflow.received)}


def counts_of(number: int) -> list[dict[str, Any]]:
    """Return the attribute with a span's tokens."""
    return [{"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(number)}}]
