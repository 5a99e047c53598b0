"""The Grafana dashboard asks the gateway's Prometheus endpoint for what there is."""

from __future__ import annotations

import json
import re
from typing import Any

import promql_parser as promql

from tests.collector.support import CONFIGURATIONS, Sample, run_python
from tests.waiting import wait_for

DASHBOARD = json.loads((CONFIGURATIONS / "grafana-dashboard.json").read_text())
VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
PANELS = [panel for panel in DASHBOARD["panels"] if "targets" in panel]


def parts(query: str, kind: type) -> list[Any]:
    """The parts of a PromQL expression that are of a kind, by a parser of PromQL."""
    found: list[Any] = []
    promql.walk(promql.parse(query), lambda part: found.append(part) if isinstance(part, kind) else None)
    return found


def selected(selector: Any, series: list[Sample]) -> list[dict[str, str]]:
    """Labels of the series that a selector picks."""

    def matches(labels: dict[str, str], matcher: Any) -> bool:
        has = labels.get(matcher.name, "")
        if matcher.op == promql.MatchOp.Re:
            return re.fullmatch(matcher.value, has) is not None
        assert matcher.op == promql.MatchOp.Equal
        return bool(has == matcher.value)

    return [
        labels
        for name, labels, _ in series
        if name == selector.name and all(matches(labels, matcher) for matcher in selector.matchers.matchers)
    ]


def test_every_query_finds_something(collector, environment):
    """After a reward and a tool that fails a trajectory each selector picks series.

    The series have the labels that the panel groups by.
    """
    gateway = collector("gateway.yaml", "to-file.yaml", METRICS_INTERVAL="1s")
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = gateway.endpoint
    environment["OTEL_ROLLOUT_METRICS"] = "true"
    run_python("tests.collector.programs.failing_tool", environment)

    def complete() -> list[Sample] | None:
        series = gateway.span_metrics()
        counted = {
            labels["span_name"] for name, labels, _ in series if name == "rollout_duration_seconds_count"
        }
        scored = any(name == "rollout_scores_calls_total" for name, _, _ in series)
        measured = any(name == "rollout_trajectory_turns_count" for name, _, _ in series)
        return series if scored and measured and counted >= {"tool", "rollout_trace"} else None

    series = wait_for(complete, what="metrics of every span")

    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert len(queries) >= 18
    for query in queries:
        for variable in VARIABLES:  # as Grafana does with "All"
            assert f'=~"${variable["name"]}"' in query
            query = query.replace(f"${variable['name']}", variable["allValue"])
        assert "$" not in query
        grouped_by = {
            label
            for part in parts(query, promql.AggregateExpr)
            if part.modifier
            for label in part.modifier.labels
        }
        selectors = parts(query, promql.VectorSelector)
        assert selectors
        for selector in selectors:
            found = selected(selector, series)
            assert found, f"{selector} finds nothing"
            assert all(grouped_by <= set(labels) for labels in found), query


def test_its_variables_are_filled_and_its_data_source_is_chosen():
    """Every variable lists values of a label that is there.

    No panel is tied to somebody's own Prometheus.
    """
    asked = [
        re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups() for variable in VARIABLES
    ]
    assert {label for _, label in asked} == {
        "rollout_project_name",
        "rollout_experiment_name",
        "rollout_validate",
    }
    assert {metric for metric, _ in asked} == {"rollout_calls_total"}
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert DASHBOARD["uid"]
