"""Write scores as Weave's feedback, keep the newest of each name, and find the scored calls."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.exporting.api import UndeliveredError
from otel_rollout.exporting.batching import chunks
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.evaluations import Evaluation, Rank
from otel_rollout.otlp.json_values import time_of_timestamp, timestamp_of
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity
from otel_rollout.otlp.span import Span
from otel_rollout_weave import values
from otel_rollout_weave.ids import RUN_ID_ATTRIBUTE, call_id_of, uuid_of
from otel_rollout_weave.server import MAX_REMEMBERED, Server, is_question_refused

MAX_TYPE_CHARS: Final = 128
"""Maximum characters of a feedback type; a longer score name is cut and gets a digest."""
MAX_TEXT_CHARS: Final = 10_000
"""Maximum characters of a score that is text, and of an explanation; the rest is cut."""
RUN_FEEDBACK: Final = "wb_run"
"""Feedback type that links a trajectory to a W&B run published after the trajectory was written."""
_SCORES_PER_REQUEST: Final = 1000
_IDS_PER_QUERY: Final = 100
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WeaveFeedback(Evaluation):
    """A score as Weave's feedback, whose type is its name: ``feedback.[<name>].payload.value`` finds it.

    Attributes:
        call_id: id of the call that was scored.
    """

    call_id: str

    @property
    def id(self) -> str:
        """The feedback's id, made of call and name; a resent score has an equal id."""
        return uuid_of(f"{self.call_id}/{self.name}")

    @property
    def rank(self) -> Rank:
        """The sort key of scores, by time in microseconds, as Weave stores it."""
        return self.is_dated, self.time_ns // 1000 if self.is_dated else 0, bool(self.comment)

    def to_weave(self, project_id: str) -> dict[str, Any]:
        """Make the feedback in the form of the server's API."""
        payload: dict[str, Any] = {"value": self.value}
        if self.is_dated:
            payload["given_at"] = timestamp_of(self.time_ns)
        if self.comment:
            payload["explanation"] = self.comment
        return {
            "id": self.id,
            "project_id": project_id,
            "weave_ref": f"weave:///{project_id}/call/{self.call_id}",
            "feedback_type": self.name,
            "creator": "otel-rollout",
            "payload": payload,
        }


def rank_of(payload: Mapping[str, Any]) -> Rank:
    """Return the rank of a stored score, read from its payload."""
    given_at = time_of_timestamp(payload.get("given_at"))
    return bool(given_at), given_at // 1000, bool(payload.get("explanation"))


def newest(feedback: Iterable[WeaveFeedback]) -> dict[str, WeaveFeedback]:
    """Map each feedback id to its newest score."""
    return evaluations.newest_by(lambda score: score.id, feedback)


def feedback_of(span: Span) -> list[WeaveFeedback]:
    """Read the scores of a root span, or the score of an evaluation span."""
    scores = evaluations.scores_of(span)
    return [to_feedback(call_id_of(span.trace_id, scored_id), score) for scored_id, score, _ in scores]


class ScoresBelow:
    """The scores below operations of trajectories: of other libraries and senders, which may score anything.

    Each is feedback of the call above it, and also of the trajectory's root once both have come. Not
    thread-safe: used under the exporter's lock.
    """

    def __init__(self) -> None:
        self._roots: BoundedDict[str, tuple[str, TrajectoryIdentity]] = BoundedDict(MAX_REMEMBERED)
        self._scores: BoundedDict[str, list[tuple[Span, Evaluation]]] = BoundedDict(MAX_REMEMBERED, len)

    def feedback_of(self, span: Span) -> Iterator[WeaveFeedback]:
        """Yield the feedback of a span's scores; of a root, also that of earlier scores in its trace."""
        yield from feedback_of(span)
        trace_id = span.trace_id
        if span.parent_id:
            scores = [(span, score) for _, score, is_late in evaluations.scores_of(span) if is_late]
            if scores:
                self._scores[trace_id] = [*self._scores.get(trace_id, ()), *scores][-MAX_REMEMBERED:]
        elif semconv.VALIDATE in span.attributes and semconv.GEN_AI_EVALUATION_NAME not in span.attributes:
            self._roots[trace_id] = call_id_of(trace_id, span.span_id), _identity_of(span)
            scores = self._scores.get(trace_id, [])
        else:
            return
        if scores and trace_id in self._roots:
            root, identity = self._roots[trace_id]
            for given, score in scores:
                if semconv.VALIDATE not in given.attributes or _identity_of(given) == identity:
                    yield to_feedback(root, score)


def _identity_of(span: Span) -> TrajectoryIdentity:
    return TrajectoryIdentity.of(span.attributes, "")


def feedback_for(scores: Iterable[tuple[Span, Candidate[str]]]) -> Iterator[WeaveFeedback]:
    """Make the feedback of scores by identity, given the calls of their trajectories."""
    for span, candidate in scores:
        recorded = evaluations.recorded_in(span.attributes, span.start_ns)
        if recorded is not None:
            yield to_feedback(candidate.handle, recorded)


def to_feedback(call_id: str, score: Evaluation) -> WeaveFeedback:
    """Make the feedback of a call's score."""
    value, comment = values.clean(score.value), values.clean(score.comment[:MAX_TEXT_CHARS])
    if isinstance(value, str):
        value = value[:MAX_TEXT_CHARS]
    name = _feedback_type(score.name)
    return WeaveFeedback(name, value, score.time_ns, comment, is_dated=score.is_dated, call_id=call_id)


def _feedback_type(name: str) -> str:
    """Cut a score's name to Weave's limit; a digest keeps long names apart."""
    cleaned = str(values.clean(name))
    if cleaned.startswith("wandb.") or cleaned == RUN_FEEDBACK:  # reserved by the server, and by us
        cleaned = f"_{cleaned}"
    if len(cleaned) <= MAX_TYPE_CHARS:
        return cleaned
    digest = hashlib.sha256(cleaned.encode()).hexdigest()[:8]
    return f"{cleaned[: MAX_TYPE_CHARS - 9]}~{digest}"


class ScoreWriter:
    """Writes feedback. Not thread-safe: used under the exporter's lock."""

    def __init__(self, server: Server) -> None:
        self._server = server
        # Feedback id → the stored score; None: an unknown score may be stored.
        self._scores: BoundedDict[str, WeaveFeedback | None] = BoundedDict(MAX_REMEMBERED)

    def get(self, feedback_id: str) -> WeaveFeedback | None:
        """Return the score that this exporter wrote last under an id; None if unknown."""
        return self._scores.get(feedback_id)

    def write(self, project_id: str, scores: Mapping[str, WeaveFeedback]) -> None:
        """Write scores by their ids, except where Weave has an equal or newer one.

        Older scores are deleted.

        Raises:
            UndeliveredError: not all scores are stored.
        """
        pending = {
            id_: score
            for id_, score in scores.items()
            if (known := self._scores.get(id_)) is None or score.rank > known.rank
        }
        replaced = {id_ for id_ in pending if id_ in self._scores}
        for ids in chunks(list(pending), _IDS_PER_QUERY):
            for id_, ranks in self._stored(project_id, ids).items():
                replaced.add(id_)
                # A score that is stored twice is deleted and written again, unless Weave has a newer one.
                if max(ranks) > pending[id_].rank or ranks == [pending[id_].rank]:
                    del pending[id_]
        for ids in chunks([id_ for id_ in pending if id_ in replaced], _IDS_PER_QUERY):
            self._server.purge_feedback(project_id, ids)
        for chunk in chunks(pending.values(), _SCORES_PER_REQUEST):
            for score in chunk:
                self._scores[score.id] = None  # in case no answer comes
            self._server.write_feedback([score.to_weave(project_id) for score in chunk])
            for score in chunk:
                self._scores[score.id] = score

    def link_run(self, project_id: str, run: str, rollout_run_id: str) -> None:
        """Link the written trajectories of a rollout to a W&B run by feedback.

        Raises:
            UndeliveredError: not all are linked; status 404 if there is no such Weave project.
        """
        wanted = {RUN_ID_ATTRIBUTE: rollout_run_id}
        # The call of a running trajectory will name the run when it ends.
        roots = _ended_roots(
            self._server, project_id, ["wb_run_id"], wanted, "looking for trajectories of the run"
        )
        links = [
            WeaveFeedback(RUN_FEEDBACK, run, time.time_ns(), call_id=root["id"])
            for root in roots
            if root.get("wb_run_id") != run
        ]
        self.write(project_id, {link.id: link for link in links if not self._is_linked(link)})

    def _is_linked(self, link: WeaveFeedback) -> bool:
        known = self._scores.get(link.id)
        return known is not None and known.value == link.value

    def _stored(self, project_id: str, ids: Sequence[str]) -> dict[str, list[Rank]]:
        """Return the ranks of stored scores; none if the server refuses the query."""
        try:
            found = self._server.find_feedback(project_id, ids)
        except UndeliveredError as error:
            if not is_question_refused(error):
                raise
            # Continue with the scores that this exporter remembers.
            _logger.debug("Weave does not say which scores it has: %s", error)
            return {}
        return {id_: [rank_of(payload) for payload in payloads] for id_, payloads in found.items()}


# --- scores by identity -------------------------------------------------------------------------------------


def find(server: Server, project_id: str, scores: Sequence[TrajectoryIdentity]) -> list[Candidate[str]]:
    """Return the trajectories of the scores' steps, with one query for each step.

    Args:
        project_id: ``entity/project``.
        scores: scores of one project.
    """
    steps = dict.fromkeys((score.project, score.experiment, score.step) for score in scores)
    found: dict[str, Candidate[str]] = {}  # by id: the query for scores without a step finds all steps
    for project, experiment, step in steps:
        wanted = {semconv.EXPERIMENT_NAME: experiment, semconv.STEP: step}
        for call in _trajectories(server, project_id, wanted):
            id_, attributes = str(call["id"]), call["attributes"]
            identity = TrajectoryIdentity.of_stored(attributes, project, attributes.get(RUN_ID_ATTRIBUTE))
            found[id_] = Candidate(identity, id_, time_of_timestamp(call.get("started_at")))
    return list(found.values())


def has_trajectories(server: Server, project_id: str, run: str) -> bool:
    """Return whether a run has stored a trajectory in a project."""
    return any(True for _ in _trajectories(server, project_id, {RUN_ID_ATTRIBUTE: run}))


def _trajectories(server: Server, project_id: str, wanted: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the root calls of ended trajectories whose attributes have the wanted texts."""
    action = "looking for the trajectories of scores"
    for call in _ended_roots(server, project_id, ["started_at", "attributes"], wanted, action):
        if type((call.get("attributes") or {}).get(semconv.short_name(semconv.VALIDATE))) is bool:
            yield call


def _ended_roots(
    server: Server, project_id: str, columns: Sequence[str], wanted: Mapping[str, str], action: str
) -> Iterator[dict[str, Any]]:
    """Yield ended root calls whose attributes have the wanted texts, the oldest first."""
    equal = [
        {"$eq": [_text_of(semconv.short_name(name)), {"$literal": text}]}
        for name, text in wanted.items()
        if text
    ]
    calls = server.find_calls(
        project_id,
        ["id", "ended_at", *columns],
        action,
        filter={"trace_roots_only": True},
        query={"$expr": {"$and": equal}},
        sort_by=[{"field": "started_at", "direction": "asc"}],
    )
    # The call that shows a running trajectory is deleted when the trajectory has ended.
    return (call for call in calls if call.get("ended_at"))


def _text_of(attribute: str) -> dict[str, Any]:
    """Make the expression for an attribute as text: a step may be a number."""
    return {"$convert": {"input": {"$getField": f"attributes.{attribute}"}, "to": "string"}}
