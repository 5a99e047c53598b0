"""The alert rules ask for metrics that agent, gateway and training really have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import promql_parser as promql
import pytest
import yaml

from tests.collector.support import CONFIGURATIONS, Collector, Sample, run_python
from tests.collector.test_dashboard import parts, selected
from tests.waiting import wait_for

ALERTS = yaml.safe_load((CONFIGURATIONS / "alerts.yaml").read_text())
RULES: dict[str, list[dict[str, Any]]] = {group["name"]: group["rules"] for group in ALERTS["groups"]}
OF_COLLECTORS, OF_TRAINING = "otel-rollout-collectors", "otel-rollout-recording"
OF_PROMETHEUS = {"up"}
"""Metrics that Prometheus itself makes of each scrape."""


@pytest.fixture
def refusing_backend() -> Iterator[str]:
    """The address of a backend that refuses every span for good."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def asked_for(group: str) -> set[str]:
    """The names of the metrics in the rules of a group."""
    return {
        selector.name
        for rule in RULES[group]
        for selector in parts(rule["expr"], promql.VectorSelector)
        if selector.name not in OF_PROMETHEUS
    }


def names(series: list[Sample]) -> set[str]:
    """The names of series."""
    return {name for name, _, _ in series}


def test_rules_ask_for_what_agent_gateway_and_training_report(
    collector: Callable[..., Collector], environment: dict[str, str], refusing_backend: str
) -> None:
    """Each rule's selectors and groupings find series after a refused span and a dropped one.

    Training sends its metrics to the agent, as its spans.
    """
    gateway = collector("gateway.yaml", "to-otlp.yaml", BACKEND_ENDPOINT=refusing_backend)
    agent = collector("agent.yaml", GATEWAY_ENDPOINT=gateway.endpoint)
    environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": agent.endpoint}
    run_python("tests.collector.programs.dropped_span", environment)

    def found() -> dict[str, list[Sample]] | None:
        own, training = gateway.own_metrics(), gateway.span_metrics()
        whole = names(own) >= asked_for(OF_COLLECTORS) and names(training) >= asked_for(OF_TRAINING)
        return {OF_COLLECTORS: own, OF_TRAINING: training} if whole else None

    series = wait_for(found, what="every metric of the rules")
    assert names(agent.own_metrics()) >= {"otelcol_exporter_queue_size", "otelcol_exporter_queue_capacity"}
    for group, rules in RULES.items():
        for rule in rules:
            by = {
                label for part in parts(rule["expr"], promql.AggregateExpr) for label in part.modifier.labels
            }
            for selector in parts(rule["expr"], promql.VectorSelector):
                if selector.name not in OF_PROMETHEUS:
                    of_selector = selected(selector, series[group])
                    assert of_selector, rule["alert"]
                    assert by <= of_selector[0].keys() | {"job"}, rule["alert"]


def test_every_rule_says_what_to_do() -> None:
    """Each has a name of its own, a severity, a summary and a description."""
    rules = [rule for group in RULES.values() for rule in group]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}
