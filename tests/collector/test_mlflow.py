"""Spans as the Collector sends them to MLflow."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

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
    sent = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}
    with serving({"/v1/traces": (200, {"Content-Type": "application/x-protobuf"}, b"")}) as mlflow:
        running = collector("local.yaml", "to-mlflow.yaml", MLFLOW_TRACKING_URI=mlflow.uri)
        request = urllib.request.Request(
            f"{running.endpoint}/v1/traces", json.dumps(sent).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=30).close()
        wait_for(lambda: len(spans_in(mlflow.received)) >= len(spans), what="every span")
        found = {span.name: plain_attributes(span.attributes) for span in spans_in(mlflow.received)}

    assert {name: given.get(USAGE) for name, given in found.items()} == {
        "LLM": None,
        "CHAIN": "",
        "AGENT": None,
    }
    assert found["CHAIN"]["gen_ai.usage.output_tokens"] == 50


def counts_of(number: int) -> list[dict[str, Any]]:
    """Return the attribute with a span's tokens."""
    return [{"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(number)}}]
