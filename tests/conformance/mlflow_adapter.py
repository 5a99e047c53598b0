"""Read MLflow by MLflow's own client."""

from __future__ import annotations

import json
import warnings
from typing import Any

from tests.conformance.backend import Operation, Score, identity, inputs


class MlflowAdapter:
    """Reads an experiment's traces.

    Args:
        uri: of a database or a server.
    """

    exporter = "mlflow"

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.variables = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}

    def read(self, project: str) -> list[Operation]:
        return [operation for trace in self.traces(project) for operation in _operations(trace)]

    def traces(self, project: str) -> list[Any]:
        """Return the project's traces as MLflow's client has them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of MLflow's own imports
            from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(project)
        assert experiment is not None
        return list(client.search_traces(locations=[experiment.experiment_id]))

    def shows(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("\0", "\u2400")
        is_huge = type(value) is int and not -(2**63) <= value < 2**63
        return str(value) if is_huge else value


def _operations(trace: Any) -> list[Operation]:
    operations = {span.span_id: _operation(span, trace.info.trace_id) for span in trace.data.spans}
    for score in trace.info.assessments:
        scores = operations[score.span_id].scores
        assert score.name not in scores, "a score twice"
        given_at = int(score.metadata["rollout.score_time"]) // 1000
        scores[score.name] = Score(score.value, given_at, score.rationale or "")
    return list(operations.values())


def _operation(span: Any, trace_id: str) -> Operation:
    raised = [event.attributes for event in span.events if event.name == "exception"]
    failed = span.status.status_code.value == "ERROR"
    return Operation(
        id=span.span_id,
        parent_id=span.parent_id,
        trace=trace_id.removeprefix("tr-"),
        name=span.name,
        start_us=span.start_time_ns // 1000,
        end_us=span.end_time_ns // 1000,
        inputs=inputs(span.inputs),
        output=span.outputs,
        failed=failed,
        message=span.status.description if failed else "",
        exception=(raised[-1]["exception.type"], raised[-1]["exception.message"]) if raised else None,
        identity=identity({name: _plain(value) for name, value in span.attributes.items()}, "rollout."),
        is_outside=span.attributes.get("rollout.score_origin") == "outside",
    )


def _plain(value: Any) -> Any:
    """Encode an attribute again whose JSON MLflow's client has decoded."""
    return value if not isinstance(value, (dict, list)) else json.dumps(value)
