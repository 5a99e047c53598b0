"""Read Weave's own server by Weave's own client."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conformance.backend import Operation, Score, identity, inputs
from tests.local_weave import LocalWeave

SEPARATORS = dict.fromkeys((0x85, 0x2028, 0x2029), "\n")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WeaveAdapter:
    """Reads a project's calls and feedback."""

    exporter = "weave"

    def __init__(self, weave: LocalWeave) -> None:
        self.variables = weave.environment
        self._weave = weave

    def read(self, project: str) -> list[Operation]:
        scores: dict[str, dict[str, Score]] = {}
        for feedback in self._weave.feedback(project):
            of_call = scores.setdefault(feedback["weave_ref"].rpartition("/")[2], {})
            assert feedback["feedback_type"] not in of_call, "a score twice"
            given = feedback["payload"]
            score = Score(given["value"], _microseconds(given["given_at"]), given.get("explanation", ""))
            of_call[feedback["feedback_type"]] = score
        calls = self._weave.calls(project)
        repeated: dict[str, set[str]] = {}
        for call in calls:
            name = call["attributes"].get("gen_ai", {}).get("evaluation", {}).get("name")
            if name and "score_origin" not in call["attributes"]:
                repeated.setdefault(call["parent_id"], set()).add(name)
        return [
            _operation(call, scores.get(call["id"], {}), repeated.get(call["id"], set())) for call in calls
        ]

    def shows(self, value: Any) -> Any:
        return value.translate(SEPARATORS) if isinstance(value, str) else value


def _operation(call: dict[str, Any], scores: dict[str, Score], repeated: set[str]) -> Operation:
    raised = json.loads(call["exception"]) if call["exception"] else None
    otel = call["attributes"].get("otel", {})
    exceptions = [event["attributes"] for event in otel.get("events", ()) if event["name"] == "exception"]
    return Operation(
        id=call["id"],
        parent_id=call["parent_id"],
        trace=call["trace_id"],
        name=call["op_name"],
        start_us=_microseconds(call["started_at"]),
        end_us=_microseconds(call["ended_at"]) if call["ended_at"] else -1,
        inputs=inputs(call["inputs"]),
        output=_output(call, repeated),
        failed=raised is not None,
        message=otel.get("status_message", ""),
        exception=(exceptions[-1]["exception.type"], exceptions[-1]["exception.message"])
        if exceptions
        else None,
        identity=identity(call["attributes"]),
        scores=scores,
        is_outside=call["attributes"].get("score_origin") == "outside",
    )


def _output(call: dict[str, Any], repeated: set[str]) -> Any:
    """Return a root's output without the scores that the exporter puts into it."""
    output = call["output"]
    if call["parent_id"] is not None or not repeated or not isinstance(output, dict):
        return output
    hidden = output.get("scores", {}) if isinstance(output.get("scores"), dict) else {}
    own = {name: value for name, value in output.items() if name not in repeated or name in hidden}
    if hidden and hidden.keys() <= repeated:
        del own["scores"]
    if list(own) == ["value"]:
        return own["value"]
    return own or None


def _microseconds(iso: str) -> int:
    return (datetime.fromisoformat(iso) - EPOCH) // timedelta(microseconds=1)
