"""Find an experiment, write spans and then their scores to it, and link traces to a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.base import rejecting
from otel_rollout.exporting.batching import batches, chunks, grouped, halved
from otel_rollout.exporting.protobuf import request_of
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow.database_target import StoreTarget
from otel_rollout_mlflow.mapping import placeholder, to_mlflow, trace_name
from otel_rollout_mlflow.scores import MlflowFeedback, changes_of, feedback_of, is_given_outside, tags_of
from otel_rollout_mlflow.server_target import ServerTarget
from otel_rollout_mlflow.tags import quoted, trace_id_of, useful_resource, warn_of_refused
from otel_rollout_mlflow.target import MAX_LINKS, RUNNING, Experiment

MAX_ROOTS: Final = 50
"""Maximum roots in one request. More are no faster, and a failed request costs more."""
_TRACES_PER_QUERY: Final = 100
_EXPERIMENTS_PER_SEARCH: Final = 100
_MAX_INNER: Final = 10_000
"""Maximum sub-trajectories that are kept in mind."""

Target = ServerTarget | StoreTarget


class TraceWriter:
    """Writer of spans and scores. Not thread-safe: used under the exporter's lock.

    Args:
        target: MLflow server or database.
        experiments: finds experiments, and checks that they are not deleted.
        run_links: links new traces to a run.
        max_request_bytes: maximum bytes of protobuf in one request; a larger span is sent alone.
    """

    def __init__(
        self, target: Target, experiments: Experiments, run_links: RunLinks, max_request_bytes: int
    ) -> None:
        self._target = target
        self._experiments = experiments
        self._run_links = run_links
        self._max_request_bytes = max_request_bytes
        self._inner: BoundedDict[str, None] = BoundedDict(_MAX_INNER)
        """Ids of the spans of sub-trajectories. A score of such a span is none of the whole trace."""

    def write(self, experiment_id: str, spans: Sequence[Span]) -> None:
        """Write spans and their scores.

        Raises:
            UndeliveredError: not all spans and scores are stored, or MLflow does not show the experiment.
        """
        with rejecting():
            self._inner.update((span.span_id, None) for span in spans if _is_inner(span))
            scores = [
                replace(score, tagged=False) if score.span_id in self._inner else score
                for span in spans
                for score in feedback_of(span)
            ]
        self._write_spans(experiment_id, _newest([span for span in spans if not is_given_outside(span)]))
        self._run_links.link(trace_id_of(span) for span in spans if not span.parent_id)
        if scores:
            self.write_scores(experiment_id, scores, spans)
        self._experiments.confirm(experiment_id)
        warn_of_refused(spans)

    def write_running(self, experiment_id: str, roots: Sequence[Span]) -> None:
        """Write placeholders of running roots, except where the root itself is stored.

        MLflow's own request that starts a trace is not used: afterwards MLflow keeps the first token counts
        that it finds, and does not update the duration.

        Raises:
            UndeliveredError: not all placeholders are stored.
        """
        for of_request in chunks(roots, MAX_ROOTS):
            infos = self._stored([trace_id_of(root) for root in of_request], experiment_id)
            ended = {id_ for id_, info in infos.items() if info.get("state") != RUNNING}
            running = [root for root in of_request if trace_id_of(root) not in ended]
            with rejecting():
                mapped = [placeholder(root) for root in running]
                requests = list(requests_of(mapped, self._max_request_bytes))
            for request in requests:
                self._target.write_spans(request, experiment_id)
            for span in mapped:
                self._target.name_trace(trace_id_of(span), trace_name(span))

    def write_scores(
        self, experiment_id: str, scores: Iterable[MlflowFeedback], spans: Sequence[Span] = ()
    ) -> None:
        """Write scores.

        Args:
            experiment_id: the experiment in which their traces are looked up first.
            scores: the scores.
            spans: their spans, which are written for a trace that MLflow does not have.

        Raises:
            UndeliveredError: not all scores are stored, or a trace is gone.
        """
        by_trace = grouped(scores, lambda score: score.trace_id)
        infos = self._infos_of(by_trace.keys(), experiment_id)
        missing = by_trace.keys() - infos.keys()
        if missing and spans:
            # Another forwarder may write the trajectory later; until then the trace has only this span.
            self._write_spans(experiment_id, [span for span in spans if trace_id_of(span) in missing])
            infos |= self._infos_of(missing, experiment_id)
        if still := sorted(by_trace.keys() - infos.keys()):
            kind = FailureKind.REJECTED if spans else FailureKind.UNAVAILABLE
            raise UndeliveredError(kind, f"MLflow has no trace {still[0]} to score.")
        for decide in (tags_of, changes_of):
            changes = [
                change for id_, of_trace in by_trace.items() for change in decide(of_trace, infos[id_])
            ]
            if changes:
                self._target.write_feedback(changes)

    def _infos_of(self, trace_ids: Collection[str], experiment_id: str) -> dict[str, dict[str, Any]]:
        """Return tags and scores of those traces that MLflow has, in any experiment."""
        wanted = sorted(trace_ids)
        infos: dict[str, dict[str, Any]] = {}
        for chunk in chunks(wanted, _TRACES_PER_QUERY):
            infos |= self._stored(chunk, experiment_id)
        for id_ in wanted:
            if id_ not in infos and (found := self._target.trace_info(id_)) is not None:
                infos[id_] = found
        return infos

    def _stored(self, trace_ids: Iterable[str], experiment_id: str) -> dict[str, dict[str, Any]]:
        """Return the traces of an experiment by id, as MLflow's API describes them."""
        ids = ", ".join(f"'{id_}'" for id_ in trace_ids)
        found = self._target.traces_of(f"attributes.request_id IN ({ids})", [experiment_id])
        return {str(info["trace_id"]): info for info in found}

    def _write_spans(self, experiment_id: str, spans: Sequence[Span]) -> None:
        with rejecting():
            requests = list(requests_of(_mapped(spans), self._max_request_bytes))
        try:
            for request in requests:
                self._target.write_spans(request, experiment_id)
        except UndeliveredError as error:
            if error.failure.kind is FailureKind.REFUSED:
                self._experiments.forget()
            raise


def _is_inner(span: Span) -> bool:
    return span.attributes.get(semconv.BEGINS_TRAJECTORY) is True


def _newest(spans: Sequence[Span]) -> list[Span]:
    """Return the last span of each id, which is the one that MLflow would keep.

    With two spans of one id, MLflow may find a circle of parents and children, and then adds up tokens
    forever.
    """
    return list({(span.trace_id, span.span_id): span for span in spans}.values())


def _mapped(spans: Sequence[Span]) -> list[Span]:
    """Map spans; spans of one resource share the mapped resource too."""
    mapped = {resource: useful_resource(resource) for resource in {span.resource for span in spans}}
    return [to_mlflow(span, mapped[span.resource]) for span in spans]


def requests_of(spans: Sequence[Span], max_bytes: int) -> Iterator[bytes]:
    """Encode mapped spans into OTLP requests in protobuf, of bounded size.

    A request has at most ``MAX_ROOTS`` roots and ``max_bytes`` bytes of protobuf. A larger span is sent
    alone.
    """
    for batch in batches(spans, lambda span: int(not span.parent_id), MAX_ROOTS):
        # Measured as bytes: protobuf encodes a request to measure it, and would encode it again to send it.
        yield from halved(batch, lambda spans: request_of(spans).SerializeToString(), len, max_bytes)


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


class Experiments:
    """A cache of experiments' ids. Not thread-safe: used under the exporter's lock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._id_by_name: dict[str, str] = {}
        self._checked_ids: set[str] = set()

    def id_of(self, name: str) -> str:
        """Return the id of the experiment with a name; create a missing experiment.

        Raises:
            UndeliveredError: the experiment is deleted (REFUSED), or MLflow did not answer.
        """
        if name not in self._id_by_name:
            experiment = self._target.experiment_named(name)
            if experiment is None:
                self._target.create_experiment(name)
                # Look the id up: if several processes create the experiment at once, only one gets an id.
                experiment = self._target.experiment_named(name)
            if experiment is None:
                raise UndeliveredError(
                    FailureKind.UNAVAILABLE,
                    f"MLflow does not show the experiment {name!r} after creating it.",
                )
            self._id_by_name[name] = _usable(experiment).id
        return self._id_by_name[name]

    def check(self, experiment_id: str) -> str:
        """Check that the experiment with an id can be written to, and return the id.

        Raises:
            UndeliveredError: the experiment does not exist or is deleted (REFUSED), or MLflow did not answer.
        """
        if experiment_id not in self._checked_ids:
            experiment = self._target.experiment_with_id(experiment_id)
            if experiment is None:
                raise UndeliveredError(
                    FailureKind.REFUSED,
                    f"MLflow has no experiment with id {experiment_id}; set MLFLOW_EXPERIMENT_ID (or "
                    "experiment_id=) to one that exists, or MLFLOW_EXPERIMENT_NAME to have it created.",
                )
            self._checked_ids.add(_usable(experiment).id)
        return experiment_id

    def confirm(self, experiment_id: str) -> None:
        """Check that MLflow shows the spans just written to an experiment.

        MLflow also accepts spans for an experiment in its trash, but shows them to nobody.

        Raises:
            UndeliveredError: the experiment is in the trash (REFUSED) or gone (UNAVAILABLE), or MLflow did
                not answer.
        """
        experiment = self._target.experiment_with_id(experiment_id)
        if experiment is None or experiment.deleted:
            self.forget()
        if experiment is None:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE, f"The MLflow experiment with id {experiment_id} is gone."
            )
        _usable(experiment)

    def forget(self) -> None:
        """Clear the cache, so that every experiment is looked up again."""
        self._id_by_name.clear()
        self._checked_ids.clear()


def _usable(experiment: Experiment) -> Experiment:
    if experiment.deleted:
        raise UndeliveredError(
            FailureKind.REFUSED,
            f"The MLflow experiment {experiment.name!r} (id {experiment.id}) is deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.id}` or set MLFLOW_EXPERIMENT_NAME.",
        )
    return experiment
