"""The MLflow run that traces belong to: known from the start, or published while they are written."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from otel_rollout.base import semconv
from otel_rollout.exporting.api import FailureKind
from otel_rollout_mlflow.target import MAX_LINKS, Target, UndeliveredError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_EXPERIMENTS_PER_SEARCH: Final = 100


class RunLink:
    """Links traces to a run. Not thread-safe: the exporter calls it under its lock.

    Args:
        target: where traces and run are.
        run_id: the run given from the start, which has to exist; None for none.
        shown_uri: the target, as it may be shown.
    """

    def __init__(self, target: Target, run_id: str | None, shown_uri: str) -> None:
        self._target = target
        self._given = run_id
        self._published: str | None = None
        self._shown_uri = shown_uri

    def check(self) -> None:
        """Make sure that the run given from the start exists.

        Raises:
            UndeliveredError: it does not (REFUSED), or MLflow did not answer.
        """
        if self._given:
            self._check(
                self._given, "set MLFLOW_RUN_ID (or run_id=) to a run of that server, or leave it out"
            )

    def publish(self, run_id: str, rollout_run_id: str, experiment_ids: Sequence[str]) -> None:
        """From now on link to this run, and link what is stored of the rollout run in these experiments.

        Raises:
            UndeliveredError: the run does not exist (REFUSED), or not everything could be linked.
        """
        self._check(run_id, "publish_run(mlflow=...) takes the id of a run of that server")
        self._published = run_id
        wanted = f"tags.`{semconv.RUN_ID}` = {quoted(rollout_run_id)}"
        for some in _batches(experiment_ids, _EXPERIMENTS_PER_SEARCH):
            found = (trace["trace_id"] for trace in self._target.traces_of(wanted, some))
            for trace_ids in _batches(found, MAX_LINKS):
                self._target.link_traces(trace_ids, run_id)

    def link(self, trace_ids: Iterable[str]) -> None:
        """Link traces just written.

        Raises:
            UndeliveredError: they are not linked.
        """
        run_id = self._published or self._given
        if not run_id:
            return
        for some in _batches(trace_ids, MAX_LINKS):
            try:
                self._target.link_traces(some, run_id)
            except UndeliveredError as error:
                if error.failure.kind is not FailureKind.REFUSED or not self._published:
                    raise
                # The published run is gone, which is no reason to hold spans back: the next `publish`
                # says so, and links these where there is a run again.
                self._published = None
                return

    def _check(self, run_id: str, advice: str) -> None:
        # MLflow finds nothing by a run it does not know, and says nothing.
        if not self._target.has_run(run_id):
            raise UndeliveredError(
                FailureKind.REFUSED, f"MLflow at {self._shown_uri} has no run {run_id}: {advice}."
            )


def _batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def quoted(text: str) -> str:
    """A string in MLflow's search syntax, which knows no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"
