"""Write feedback so that Weave keeps only the newest score of each name."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.exporting.api import UndeliveredError
from otel_rollout.exporting.batching import chunks
from otel_rollout.otlp.evaluations import Rank
from otel_rollout_weave.attributes import RUN_ID_ATTRIBUTE
from otel_rollout_weave.calls import MAX_REMEMBERED, is_question_refused
from otel_rollout_weave.feedback import WeaveFeedback, rank_of, run_feedback
from otel_rollout_weave.server import Server

_SCORES_PER_REQUEST: Final = 1000
_IDS_PER_QUERY: Final = 100

_logger = logging.getLogger(__name__)


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
        pending = {id_: score for id_, score in scores.items() if _is_newer(score, self._scores.get(id_))}
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
        attribute = {"$getField": f"attributes.{RUN_ID_ATTRIBUTE}"}
        roots = self._server.find_calls(
            project_id,
            ["id", "ended_at", "wb_run_id"],
            "looking for trajectories of the run",
            filter={"trace_roots_only": True},
            query={"$expr": {"$eq": [attribute, {"$literal": rollout_run_id}]}},
            sort_by=[{"field": "started_at", "direction": "asc"}],
        )
        # Only trajectories that have ended: the call of a running one will name the run when it ends.
        links = [
            run_feedback(root["id"], run, time.time_ns())
            for root in roots
            if root.get("ended_at") and root.get("wb_run_id") != run
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


def _is_newer(score: WeaveFeedback, known: WeaveFeedback | None) -> bool:
    return known is None or score.rank > known.rank
