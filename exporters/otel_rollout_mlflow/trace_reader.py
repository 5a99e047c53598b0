"""Read traces back from MLflow, with their spans as they were recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from otel_rollout.base import semconv
from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.evaluations import Evaluation
from otel_rollout.otlp.json_line import line_of
from otel_rollout.otlp.json_values import time_of_timestamp
from otel_rollout.otlp.origin import Resource
from otel_rollout.otlp.protobuf import span_without_links
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow import scores, settings
from otel_rollout_mlflow.database_target import StoreTarget
from otel_rollout_mlflow.mapping import PLACEHOLDER_PARENT, SPAN_INPUTS, SPAN_OUTPUTS
from otel_rollout_mlflow.server_target import ServerTarget
from otel_rollout_mlflow.storable import DECODED_BY_MLFLOW
from otel_rollout_mlflow.tags import MAX_TAG_CHARS, TRACE_ID_PREFIX, quoted
from otel_rollout_mlflow.target import RUNNING

_SPANS_LOCATION: Final = "mlflow.trace.spansLocation"
_IN_DATABASE: Final = "TRACKING_STORE"
_ATTRIBUTES: Final = {SPAN_INPUTS: semconv.INPUT_VALUE, SPAN_OUTPUTS: semconv.OUTPUT_VALUE}
_TEXTS: Final = (
    *semconv.IDENTITY,
    semconv.GEN_AI_EVALUATION_NAME,
    semconv.GEN_AI_EVALUATION_SCORE_LABEL,
    semconv.GEN_AI_EVALUATION_EXPLANATION,
)
"""Attributes in which an object or a list is a text that MLflow has decoded."""


class MlflowTraces:
    """The trajectories in an MLflow server or database.

    Settings and credentials are those of the exporter.

    Args:
        tracking_uri: server or database (``MLFLOW_TRACKING_URI``).
        project: the experiment to look in, unless a variable of MLflow names one; None for all.

    Raises:
        ValueError: a setting is missing, malformed or not supported.
        UndeliveredError: MLflow does not answer, or is not usable.
    """

    def __init__(self, tracking_uri: str | None, project: str | None) -> None:
        self._settings = settings.resolve(tracking_uri=tracking_uri)
        self._project = self._settings.experiment_name or project
        self._target: ServerTarget | StoreTarget
        if self._settings.is_server:
            self._target = ServerTarget(self._settings)
        else:
            _require_file(self._settings)
            self._target = StoreTarget(self._settings)
        self._target.connect()

    @property
    def location(self) -> str:
        """A phrase for messages that names MLflow's address, without credentials."""
        return f"MLflow at {self._settings.shown_uri}"

    def find(
        self, tags: Mapping[str, str], id_prefix: str = "", is_running: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield trajectories, the newest first, as MLflow's API describes them, with ``start_ns`` added.

        Args:
            tags: tags that a trajectory has; an empty value matches any value.
            id_prefix: hex digits that the trace id starts with.
            is_running: whether only trajectories that run are wanted.

        Raises:
            UndeliveredError: MLflow does not answer, or has no such experiment.
        """
        wanted = [
            f"tags.`{name}` = {quoted(text)}" if text else f"tags.`{name}` LIKE '%'"
            for name, text in tags.items()
        ]
        if is_running:
            wanted.append(f"attributes.status = '{RUNNING}'")
        if id_prefix:
            wanted.append(f"attributes.request_id LIKE '{TRACE_ID_PREFIX}{id_prefix}%'")
        for found in self._target.traces_of(" AND ".join(wanted), self._experiment_ids(), newest_first=True):
            yield {**found, "start_ns": time_of_timestamp(found.get("request_time"))}

    def line_of(self, described: Mapping[str, Any], with_running: bool = False) -> bytes | None:
        """Return a trace as a line of OTLP/JSON, with its scores as evaluation spans.

        Return None if no span is stored.

        Args:
            described: the trace, as :meth:`find` found it.
            with_running: whether the root of a trajectory that runs is wanted. Its end is 0.

        Raises:
            UndeliveredError: MLflow does not answer.
        """
        # Check first: for a trace without spans, MLflow answers with an internal error.
        if (described.get("tags") or {}).get(_SPANS_LOCATION) != _IN_DATABASE:
            return None
        trace = self._target.trace(str(described["trace_id"]))
        return None if trace is None else as_line(trace, with_running)

    def close(self) -> None:
        """Close connections."""
        self._target.close()

    def _experiment_ids(self) -> list[str]:
        if self._settings.experiment_id:
            return [self._settings.experiment_id]
        if not self._project:
            return self._target.experiment_ids()
        experiment = self._target.experiment_named(self._project)
        if experiment is None:
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"{self.location} has no experiment {self._project!r}: set MLFLOW_EXPERIMENT_NAME to one "
                "that it has, or unset it and OTEL_ROLLOUT_PROJECT to look in all.",
            )
        return [experiment.id]


def _require_file(resolved: settings.MlflowSettings) -> None:
    """Check that a SQLite file exists, so that reading does not create one."""
    parts = urlsplit(resolved.uri)
    path = Path(parts.path.removeprefix("/"))
    if parts.scheme.partition("+")[0] == "sqlite" and not path.exists():
        raise UndeliveredError(
            FailureKind.REFUSED, f"There is no database {path}: check MLFLOW_TRACKING_URI."
        )


def as_line(trace: Mapping[str, Any], with_running: bool = False) -> bytes | None:
    """Convert a trace of MLflow's API to a line of OTLP/JSON; return None if it has no span.

    Args:
        trace: the trace.
        with_running: whether the root of a trajectory that runs is wanted. Its end is 0.
    """
    info = trace.get("trace_info") or {}
    stored = [_as_recorded(span_without_links(span, _ATTRIBUTES)) for span in trace.get("spans") or ()]
    _restore_texts(stored, info.get("tags") or {})
    spans = [span for span in stored if span.parent_id != PLACEHOLDER_PARENT]
    if with_running and info.get("state") == RUNNING:
        placeholders = [span for span in stored if span.parent_id == PLACEHOLDER_PARENT]
        first = sorted(placeholders, key=lambda span: span.start_ns)[:1]  # others are parts of its trajectory
        spans += [span.copy(parent_id="", end_ns=0) for span in first]
    if not spans:
        return None
    root_id = next((span.span_id for span in spans if not span.parent_id), "")
    recorded = {(span.parent_id, evaluations.recorded_in(span.attributes, span.start_ns)) for span in spans}
    made = (
        _evaluation(score, spans[0].trace_id, root_id, recorded) for score in info.get("assessments") or ()
    )
    spans += filter(None, made)
    spans[0].resource = Resource({semconv.RUN_ID: (info.get("tags") or {}).get(semconv.RUN_ID, "")})
    return line_of(spans)


def _as_recorded(span: Span) -> Span:
    """Encode as text what MLflow returns decoded: input and output, also texts, and JSON in ``_TEXTS``."""
    span.complete().attributes.pop(semconv.TOKENIZER, None)  # it stayed in the spool; its text has come
    for name, mime_type in semconv.MIME_TYPES.items():
        if name in span.attributes:
            text = orjson.dumps(span.attributes[name]).decode()
            span.attributes |= {name: text, mime_type: semconv.JSON_MIME_TYPE}
    for name in _TEXTS:
        if isinstance(span.attributes.get(name), (dict, list)):
            span.attributes[name] = orjson.dumps(span.attributes[name]).decode()
    return span


def _restore_texts(spans: Sequence[Span], tags: Mapping[str, str]) -> None:
    """Give spans the root's texts that MLflow has decoded, as the trace's tags have them."""
    root = next((span for span in spans if span.parent_id in ("", PLACEHOLDER_PARENT)), None)
    known = root.attributes.items() if root else ()
    texts = {name: (value, tags.get(semconv.short_name(name), "")) for name, value in known}
    for name, (decoded, text) in texts.items():
        if text.lstrip()[:1] in DECODED_BY_MLFLOW and name.startswith(semconv.EXTRA_PREFIX):
            for span in spans if len(text) < MAX_TAG_CHARS else ():
                if span.attributes.get(name) == decoded:
                    span.attributes[name] = text


def score_in(assessment: Mapping[str, Any]) -> Evaluation | None:
    """Read a score of MLflow's API; None for other assessments and overridden scores."""
    value = (assessment.get("feedback") or {}).get("value")
    name = assessment.get("assessment_name")
    if not name or assessment.get("valid") is False or not isinstance(value, (bool, int, float, str)):
        return None
    is_dated, time_ns, _ = scores.rank_of(assessment)
    if not is_dated:  # given in MLflow by a person, or recorded without its own time
        time_ns = time_of_timestamp(assessment.get("last_update_time") or assessment.get("create_time"))
    return Evaluation(str(name), value, time_ns, str(assessment.get("rationale") or ""))


def _evaluation(
    assessment: Mapping[str, Any], trace_id: str, root_id: str, recorded: set[tuple[str, Evaluation | None]]
) -> Span | None:
    """Make the evaluation span, without duration, of a score; None if a span has recorded it.

    A later value, which has the same id in MLflow, is another span: a repeated import leaves out known ones.
    """
    score = score_in(assessment)
    parent_id = assessment.get("span_id") or root_id
    if score is None or (parent_id, score) in recorded:
        return None
    key = f"{assessment.get('assessment_id')}/{score.time_ns}/{score.value!r}/{score.comment}"
    span_id = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:16]
    attributes = evaluations.attributes_of(score.name, score.value, score.comment or None, None)
    times = score.time_ns, score.time_ns
    return Span.made((trace_id, span_id, parent_id), f"score {score.name}", times, attributes)
