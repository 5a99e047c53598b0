"""Read delivered trajectories from an MLflow server or database.

MLflow's search does not tell which step a run has reached. So the newest trajectory that the trainer scored
is read, too. It tells whether the trainer has passed over an older trajectory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from otel_rollout.base import semconv, training_scores
from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.entry_points import READERS, offered
from otel_rollout.look.conversation.summary import VALIDATION, Summary, parts_of, path_of
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources.reference import Reference
from otel_rollout.look.sources.table_source import LISTER
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.otlp.span import Span
from otel_rollout.table.rows import integer_in

_logger = logging.getLogger("otel_rollout.viewer")
_MAX_READ: Final = 128
"""Maximum trajectories that are read: each takes a request. Few runs have larger groups."""
_IN_GROUP: Final = (semconv.SAMPLE_INDEX, semconv.ROLLOUT_N)
_STEP: Final = (semconv.STEP, semconv.VALIDATE)
"""Attributes that name a step."""
_TRUTH: Final = {"True": True, "False": False}


class MlflowSource:
    """Reads spans from MLflow; see :class:`otel_rollout.look.sources.private_table.SpanSource`.

    Args:
        tracking_uri: address of the server or database; None for ``MLFLOW_TRACKING_URI``.
        project: the experiment to look in; None for all experiments.

    Raises:
        ViewerError: MLflow cannot be read.
    """

    lister = f"`otel-rollout import mlflow --to delta` makes a table, in which {LISTER}"

    def __init__(self, tracking_uri: str | None, project: str | None) -> None:
        with _as_viewer_errors():
            self._traces = offered(READERS, "mlflow")(tracking_uri, project)
        self.location = self._traces.location
        self._newest = ""

    def matching(self, reference: Reference | None) -> Iterator[tuple[Iterable[Span], int | None]]:
        """Yield each run's spans; see :class:`otel_rollout.look.sources.private_table.SpanSource`.

        Of each run, at most the first 128 trajectories are read: each takes a request.
        """
        with _as_viewer_errors():
            newest = next(self._traces.find({semconv.RUN_ID: ""}), None)
            self._newest = newest["tags"][semconv.RUN_ID] if newest else ""
            if reference is None:
                of_newest = self._traces.find({semconv.RUN_ID: self._newest}) if newest else ()
                found = [described for described in of_newest if _named(described).path]
            else:
                found = self._matching(reference)
            for run in dict.fromkeys(map(_run_of, found)):
                of_run = [described for described in found if _run_of(described) == run]
                of_run.sort(key=lambda described: _named(described).order)
                yield self._spans_of(of_run[:_MAX_READ]), len(of_run) if len(of_run) > _MAX_READ else None

    def _matching(self, reference: Reference) -> list[dict[str, Any]]:
        """Return the traces that a reference matches, the newest first."""
        for tags in _tags(reference):
            found = self._traces.find(tags, reference.trace)
            if matching := [described for described in found if reference.matches(_named(described))]:
                return matching
        return []

    def notes(self, reference: Reference | None, found: Sequence[Summary]) -> tuple[str, ...]:
        """Return a remark that the newest run has no such trajectory."""
        if reference is None or found[0].run == self._newest:
            return ()
        return (f"This is an older run: the newest, {self._newest}, has no {reference.text}.",)

    def _spans_of(self, found: Sequence[Mapping[str, Any]]) -> Iterator[Span]:
        """Yield the spans of traces; for a single trace, also spans that tell whether it was passed over."""
        with _as_viewer_errors():
            for described in found:
                try:
                    yield from self._spans(described)
                except UndeliveredError as error:
                    if len(found) == 1 or error.failure.kind is not FailureKind.REJECTED:
                        raise
                    _logger.warning("left out: %s", error.failure.message)
            if len(found) == 1 and not _is_named(found[0]):
                yield from self._deciding(found[0])

    def _deciding(self, described: Mapping[str, Any]) -> Iterator[Span]:
        """Yield the spans of other trajectories that tell whether the trainer passed over this one.

        The first of them is one of the same step that the trainer scored. If the run goes on, a running one
        and the newest one that the trainer scored follow.
        """
        of_run = {semconv.RUN_ID: _run_of(described)}
        step = _step_tags(described)  # the search knows no tag that is missing or empty
        of_step = self._traces.find(of_run | {name: text for name, text in step.items() if text})
        beside = next((other for other in of_step if _is_named(other) and _step_tags(other) == step), None)
        running = next(self._traces.find(of_run, is_running=True), None) if beside else None
        newest = next(filter(_is_named, self._traces.find(of_run)), None) if running else None
        for other in filter(None, (beside, running, newest)):
            yield from self._spans(other)

    def _spans(self, described: Mapping[str, Any]) -> list[Span]:
        line = self._traces.line_of(described, with_running=True)
        return [span if span.end_ns else span.without_end() for span in spans_of(line)] if line else []

    def every_span(self) -> Iterator[Span]:
        """Yield the spans of all trajectories; the log says what MLflow cannot return."""
        for line in self.every_line(lambda reason: _logger.warning("left out: %s", reason)):
            yield from spans_of(line)

    def every_line(self, skipped: Callable[[str], None]) -> Iterator[bytes]:
        """Yield each trajectory as a line of OTLP/JSON, with its scores as evaluation spans.

        Args:
            skipped: called with the reason for each trace that MLflow cannot return.
        """
        with _as_viewer_errors():
            for described in self._traces.find({semconv.RUN_ID: ""}):
                try:
                    line = self._traces.line_of(described)
                except UndeliveredError as error:
                    if error.failure.kind is not FailureKind.REJECTED:
                        raise
                    skipped(error.failure.message)
                    continue
                if line:
                    yield line


def _tags(reference: Reference) -> Iterator[dict[str, str]]:
    """Yield sets of tags to search for a reference, the narrowest set first.

    The narrowest set may miss a match: a part of a name may have slashes, and a list prints control
    characters in another form.
    """
    if not reference.path:
        yield {}
        return
    is_validation, (step, *rest) = parts_of(reference.path)
    tags = {semconv.VALIDATE: str(is_validation)}
    if integer_in(step) is not None:
        of_step = tags | {semconv.STEP: step}
        if len(rest) == len(_IN_GROUP) and all(rest):
            yield _named_as(of_step | dict(zip(_IN_GROUP, rest, strict=True)))
        yield _named_as(of_step)
    if integer_in(step) is None or len(rest) > len(_IN_GROUP):
        yield _named_as(tags)
    if is_validation:  # or a step has this name
        yield _named_as({semconv.VALIDATE: "False", semconv.STEP: VALIDATION})


def _named_as(tags: Mapping[str, str]) -> dict[str, str]:
    return {semconv.short_name(name): text for name, text in tags.items() if text != "-"}


def _named(described: Mapping[str, Any]) -> Summary:
    """Return a summary with a trace's id, run, path and start."""
    tags: Mapping[str, str] = described.get("tags") or {}
    short = {name: semconv.short_name(name) for name in (*_STEP, *_IN_GROUP)}
    identity: dict[str, Any] = {name: tags[key] for name, key in short.items() if key in tags}
    identity[semconv.VALIDATE] = _TRUTH.get(str(identity.get(semconv.VALIDATE)))
    return Summary(
        trace_id=str(described["trace_id"]).removeprefix("tr-"),
        run=_run_of(described),
        path=path_of(identity),
        start_ns=described["start_ns"],
    )


def _run_of(described: Mapping[str, Any]) -> str:
    return str((described.get("tags") or {}).get(semconv.RUN_ID, ""))


def _step_tags(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags that name the step; a missing tag is left out."""
    tags = described.get("tags") or {}
    return {name: tags[name] for name in map(semconv.short_name, _STEP) if name in tags}


def _is_named(described: Mapping[str, Any]) -> bool:
    """Return whether a trajectory has the trainer's score ``trained``."""
    names = (each.get("assessment_name") for each in described.get("assessments") or ())
    return training_scores.TRAINED in names


@contextmanager
def _as_viewer_errors() -> Iterator[None]:
    """Convert errors of reading MLflow to :class:`ViewerError`."""
    try:
        yield
    except (ModuleNotFoundError, ValueError) as error:
        raise ViewerError(f"MLflow cannot be read: {error}") from error
    except UndeliveredError as error:
        raise ViewerError(f"MLflow cannot be read: {error.failure.message}") from error
