"""Read delivered trajectories from an MLflow server or database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.base import semconv
from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.forwarder.detokenizer import Detokenizer
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.messages import read_json
from otel_rollout.otlp.reader import spans_of
from otel_rollout.viewer.errors import ViewerError
from otel_rollout.viewer.reference import Reference
from otel_rollout.viewer.summary import VALIDATION, Score, Summary, Tokens, path_of

_STATES = {"OK": "ok", "ERROR": "error"}


class MlflowSource:
    """Read trajectories from MLflow; see :class:`otel_rollout.viewer.source.Source`.

    Args:
        tracking_uri: address of the server or database; None for ``MLFLOW_TRACKING_URI``.
        project: the experiment to look in; None for all experiments.

    Raises:
        ViewerError: MLflow cannot be read.
    """

    def __init__(self, tracking_uri: str | None, project: str | None) -> None:
        with _as_viewer_errors():
            from otel_rollout_mlflow.trace_reader import MlflowTraces

            self._traces = MlflowTraces(tracking_uri, project)
        self.location = self._traces.location
        self.notes: tuple[str, ...] = ()
        self._project = project or ""

    def find(self, reference: Reference | None) -> list[Summary]:
        """Return the matching trajectories of the newest run that has any.

        Without a reference, return all trajectories of the newest run.
        """
        with _as_viewer_errors():
            newest = next(self._traces.find({semconv.RUN_ID: ""}), None)
            run = newest["tags"][semconv.RUN_ID] if newest else ""
            if reference is None:
                traces = self._traces.find({semconv.RUN_ID: run}) if newest else ()
                return [summary for summary in map(self._summary, traces) if summary.path]
            found = list(map(self._summary, self._traces.find(_tags(reference), reference.trace)))
        matching = [summary for summary in found if reference.matches(summary)]
        if matching and matching[0].run != run:
            self.notes = (f"This is an older run: the newest, {run}, has no {reference.text}.",)
        return [summary for summary in matching if summary.run == matching[0].run]

    def _summary(self, info: Mapping[str, Any]) -> Summary:
        return replace(_summary(info), project=self._project)

    def spans(self, trace_id: str) -> list[ReadableSpan]:
        """Return all spans of a trace."""
        with _as_viewer_errors():
            line = self._traces.line_of(trace_id)
            return spans_of(line) if line else []

    def traces(self, trace_ids: Sequence[str]) -> dict[str, list[ReadableSpan]]:
        """Return all spans of each trace, by its id; a request for each."""
        return {trace_id: self.spans(trace_id) for trace_id in trace_ids}

    def every_line(self, skipped: Callable[[str], None]) -> Iterator[bytes]:
        """Yield each trajectory as a line of OTLP/JSON, with its scores as evaluation spans.

        Args:
            skipped: called with the reason for each trace that MLflow cannot return.
        """
        with _as_viewer_errors():
            for trace in self._traces.find({semconv.RUN_ID: ""}):
                try:
                    line = self._traces.line_of(str(trace["trace_id"]).removeprefix("tr-"))
                except UndeliveredError as error:
                    if error.failure.kind is not FailureKind.REJECTED:
                        raise
                    skipped(error.failure.message)
                    continue
                if line:
                    yield line + b"\n"

    def decoder(self, name: str) -> Detokenizer | None:
        """Return None: delivered spans have the text of their token ids."""
        return None


def _tags(reference: Reference) -> dict[str, str]:
    """Return the tags that all trajectories matching a reference have."""
    if not reference.path:
        return {}
    parts = reference.path.split("/")
    is_validation = parts[0] == VALIDATION
    step, *rest = parts[is_validation:]
    tags = {semconv.VALIDATE: str(is_validation), semconv.STEP: step}
    if len(rest) > 1 and rest[-1]:
        tags |= {semconv.SAMPLE_INDEX: "/".join(rest[:-1]), semconv.ROLLOUT_N: rest[-1]}
    return {semconv.short_name(name): text for name, text in tags.items() if text not in ("", "-")}


def _summary(info: Mapping[str, Any]) -> Summary:
    from otel_rollout_mlflow.trace_reader import unix_ns

    tags: Mapping[str, str] = info.get("tags") or {}
    named = (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N, semconv.VALIDATE)
    short = {name: semconv.short_name(name) for name in named}
    usage = read_json((info.get("trace_metadata") or {}).get("mlflow.trace.tokenUsage", "{}"))
    state = _STATES.get(str(info.get("state")), "running")
    duration = str(info.get("execution_duration", "")).removesuffix("s")
    return Summary(
        trace_id=str(info["trace_id"]).removeprefix("tr-"),
        run=tags.get(semconv.RUN_ID, ""),
        experiment=tags.get(semconv.short_name(semconv.EXPERIMENT_NAME), ""),
        path=path_of({name: tags[key] for name, key in short.items() if key in tags}),
        name=tags.get("mlflow.traceName", ""),
        state=state,
        start_ns=unix_ns(str(info.get("request_time", ""))),
        seconds=float(duration) if duration and state != "running" else None,
        scores=_scores(info),
        tokens=Tokens(usage.get("input_tokens"), usage.get("output_tokens"))
        if isinstance(usage, dict)
        else Tokens(),
    )


def _scores(info: Mapping[str, Any]) -> tuple[Score, ...]:
    """Return the newest score of each name; those of sub-trajectories are not its."""
    from otel_rollout_mlflow.trace_reader import is_of_part, score_in

    given = [score_in(each) for each in info.get("assessments") or () if not is_of_part(each)]
    found = evaluations.newest(score for score in given if score).values()
    return tuple(
        Score(score.name, score.value, score.comment)
        for score in sorted(found, key=lambda score: score.time_ns)
    )


@contextmanager
def _as_viewer_errors() -> Iterator[None]:
    """Convert errors of reading MLflow to :class:`ViewerError`."""
    try:
        yield
    except (ModuleNotFoundError, ValueError) as error:
        raise ViewerError(f"MLflow cannot be read: {error}") from error
    except Exception as error:
        failure = getattr(error, "failure", None)
        if failure is None:
            raise
        raise ViewerError(f"MLflow cannot be read: {failure.message}") from error
