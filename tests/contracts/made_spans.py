"""Make spans as programs record them, and write them as lines of OTLP/JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MS = 1_000_000
START = 1_767_225_600_000_000_000
COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
JUDGE = "run-judge"
"""A run that records no trajectories."""
EXPERIMENT = "first"
Value = float | bool | str


@dataclass(frozen=True)
class Identity:
    """The identity of a trajectory."""

    step: int | str | None
    sample: int | str
    rollout: int | str | None
    validate: bool = False

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that each span of the trajectory has."""
        named = {"step": self.step, "sample_index": self.sample, "rollout_n": self.rollout}
        known = {f"rollout.{name}": value for name, value in named.items() if value is not None}
        return {**known, "rollout.validate": self.validate}


@dataclass(frozen=True)
class Score:
    """A score in an evaluation span, or on the span of a trajectory.

    Attributes:
        name: the score's name.
        value: the score.
        comment: the reason.
        origin: where it was given: "" in the process, ``process``, ``outside`` or ``identity``.
    """

    name: str
    value: Value
    comment: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Made:
    """A span; times are milliseconds since ``START``.

    Attributes:
        trace: number of the trace.
        span: number of the span in the trace.
        inside: number of its parent; None for a root.
        kind: OpenInference's kind. A span of kind ``AGENT`` begins a trajectory; one of kind ``LOOP`` is an
            operation of OpenInference's kind ``AGENT``.
        begin: start.
        end: end.
        identity: the identity that the span has; None for a score by id.
        name: the span's name.
        tokens: counts of input and output.
        error: class of the error.
        evaluation: the score that the span records.
        repeated: scores that the span of a trajectory repeats, with their times.
        note: text that makes the attributes longer.
        run: id of the run that recorded it.
        project: its project; runs of other projects do not know it.
    """

    trace: int
    span: int
    inside: int | None
    kind: str
    begin: int
    end: int
    identity: Identity | None
    name: str = "operation"
    tokens: tuple[int | None, int | None] = (None, None)
    error: str = ""
    evaluation: Score | None = None
    repeated: tuple[tuple[Score, int | None], ...] = ()
    note: int = 0
    run: str = "run-1"
    project: str = "facts"

    @property
    def id(self) -> str:
        """The span's id."""
        return f"{self.trace << 16 | self.span:016x}"

    @property
    def trace_id(self) -> str:
        """The trace's id."""
        return f"{self.trace:08x}{self.trace:024x}"

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the span."""
        found: dict[str, Any] = {"rollout.project_name": self.project, "rollout.experiment_name": EXPERIMENT}
        found |= self.identity.attributes() if self.identity else {}
        found["openinference.span.kind"] = "AGENT" if self.kind == "LOOP" else self.kind
        if self.kind == "AGENT" and self.inside is not None:
            found["rollout.begins_trajectory"] = True
        found |= {name: n for name, n in zip(COUNTS, self.tokens, strict=True) if n is not None}
        found |= {"gen_ai.tool.name": self.name} if self.kind == "TOOL" else {}
        found |= {"error.type": self.error} if self.error else {}
        found |= {"note": "x" * self.note} if self.note else {}
        for score, at in self.repeated:
            found[f"rollout.score.{score.name}"] = score.value
            found |= {} if at is None else {f"rollout.score_time.{score.name}": START + at * MS}
        return found | (_evaluation(self.evaluation) if self.evaluation else {})


def _evaluation(score: Score) -> dict[str, Any]:
    found: dict[str, Any] = {"gen_ai.evaluation.name": score.name}
    if isinstance(score.value, (bool, str)):
        found["gen_ai.evaluation.score.label"] = str(score.value)
    if not isinstance(score.value, str):
        found["gen_ai.evaluation.score.value"] = float(score.value)
    found |= {"gen_ai.evaluation.explanation": score.comment} if score.comment else {}
    return found | ({"rollout.score_origin": score.origin} if score.origin else {})


def lines_of(spans: Iterable[Made]) -> str:
    """Return a line of OTLP/JSON for each span."""
    return "".join(f"{json.dumps(_line(span))}\n" for span in spans)


def _line(span: Made) -> dict[str, Any]:
    status = {"status": {"code": 2, "message": f"{span.error}: no"}} if span.error else {}
    parent = "" if span.inside is None else f"{span.trace << 16 | span.inside:016x}"
    made = {
        "traceId": span.trace_id,
        "spanId": span.id,
        "parentSpanId": parent,
        "name": span.name,
        "startTimeUnixNano": str(START + span.begin * MS),
        "endTimeUnixNano": str(START + span.end * MS),
        "attributes": _entries(span.attributes),
        **status,
    }
    resource = {"attributes": _entries({"rollout.run.id": span.run, "process.pid": 7})}
    scopes = [{"scope": {"name": "otel_rollout"}, "spans": [made]}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def _entries(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _encoded(value)} for key, value in attributes.items()]


def _encoded(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        odd = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return {"doubleValue": odd.get(str(value), value)}
    return {"stringValue": value}
