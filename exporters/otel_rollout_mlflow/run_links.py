"""Link traces to an MLflow run, given at the start or published later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otel_rollout.base import semconv
from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.batching import chunks
from otel_rollout_mlflow.target import MAX_LINKS, Target

_EXPERIMENTS_PER_SEARCH: Final = 100


class RunLinks:
    """Links traces to a run. Not thread-safe: the exporter calls it under its lock.

    Args:
        target: MLflow server or database that holds traces and run.
        run_id: the run that the settings name, which must exist; None without one.
        shown_uri: the target's address for messages, without credentials.
    """

    def __init__(self, target: Target, run_id: str | None, shown_uri: str) -> None:
        self._target = target
        self._given = run_id
        self._published: str | None = None
        self._shown_uri = shown_uri

    def check(self) -> None:
        """Check that the run of the settings exists.

        Raises:
            UndeliveredError: the run does not exist (REFUSED), or MLflow did not answer.
        """
        if self._given:
            self._check(
                self._given, "set MLFLOW_RUN_ID (or run_id=) to a run of that server, or leave it out"
            )

    def publish(self, run_id: str, rollout_run_id: str, experiment_ids: Sequence[str]) -> None:
        """Link a rollout's stored traces to a run, and all later ones.

        Args:
            run_id: MLflow's id of the run.
            rollout_run_id: tag by which the stored traces are found.
            experiment_ids: experiments that may hold the stored traces.

        Raises:
            UndeliveredError: the run does not exist (REFUSED), or not everything could be linked.
        """
        self._check(run_id, "publish_run(mlflow=...) takes the id of a run of that server")
        self._published = run_id
        wanted = f"tags.`{semconv.RUN_ID}` = {quoted(rollout_run_id)}"
        for chunk in chunks(experiment_ids, _EXPERIMENTS_PER_SEARCH):
            found = (trace["trace_id"] for trace in self._target.traces_of(wanted, chunk))
            for trace_ids in chunks(found, MAX_LINKS):
                self._target.link_traces(trace_ids, run_id)

    def link(self, trace_ids: Iterable[str]) -> None:
        """Link traces just written.

        Raises:
            UndeliveredError: the traces are not linked. If a published run is gone, no error is raised.
        """
        run_id = self._published or self._given
        if not run_id:
            return
        for chunk in chunks(trace_ids, MAX_LINKS):
            try:
                self._target.link_traces(chunk, run_id)
            except UndeliveredError as error:
                if error.failure.kind is not FailureKind.REFUSED or not self._published:
                    raise
                # The published run is gone, but spans must still be delivered. The next `publish` reports the
                # failure, or links these traces if the run exists again.
                self._published = None
                return

    def _check(self, run_id: str, advice: str) -> None:
        # MLflow links nothing to an unknown run, and reports no error.
        if not self._target.has_run(run_id):
            raise UndeliveredError(
                FailureKind.REFUSED, f"MLflow at {self._shown_uri} has no run {run_id}: {advice}."
            )


def quoted(text: str) -> str:
    """Quote a string for MLflow's search syntax, which has no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"
