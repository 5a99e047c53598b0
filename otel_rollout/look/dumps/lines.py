"""Write the trajectories of dumps as lines of OTLP/JSON, with ids that follow from what they are."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.trajectory import DumpedCall, DumpedTrajectory, RolloutIdentity, Times
from otel_rollout.otlp import made_line
from otel_rollout.otlp.made_line import MadeSpan
from otel_rollout.table.json_text import MAX_INT, MIN_INT, as_json

_NAME: Final = "rollout_trace"


class DumpLines:
    """Makes a line of each trajectory of one experiment in one format.

    Spans whose time the dump does not say begin at 0, 1, 2 … ns of 1970: that is their order, and no time.

    Args:
        format_: name of the format.
        experiment: name of the training run.
        clock: counts the spans without times.

    Attributes:
        repeated: number of trajectories whose identity another one had before.
    """

    def __init__(self, format_: str, experiment: str, clock: Iterator[int]) -> None:
        self.repeated = 0
        self._name = f"{format_}/{experiment}"
        self._experiment = experiment
        self._seen: dict[bytes, int] = {}
        self._clock = clock
        self._resource = {semconv.RUN_ID: self._name, semconv.DUMP_FORMAT: format_}

    def line_of(self, dumped: DumpedTrajectory, place: str) -> bytes:
        """Return a trajectory as a line.

        Args:
            dumped: the trajectory.
            place: file and line, for a person.
        """
        trace_id = self._trace_id(dumped.identity)
        return made_line.line_of(self._resource, semconv.SCOPE, self._spans(dumped, trace_id, place))

    def _trace_id(self, identity: RolloutIdentity) -> str:
        """Return the id that follows from an identity; of a repeated one also from how often it came."""
        key = blake2b(repr((self._name, *identity[:4])).encode(), digest_size=16)
        count = self._seen[key.digest()] = self._seen.get(key.digest(), 0) + 1
        if count > 1:
            self.repeated += 1
            key.update(b"%d" % count)
        return key.hexdigest()

    def _spans(self, dumped: DumpedTrajectory, trace_id: str, place: str) -> Iterator[MadeSpan]:
        def id_of(number: int) -> str:
            return f"{trace_id[:11]}{number + 1:05x}"

        identity = self._attributes(dumped.identity)
        root = {semconv.SPAN_KIND: semconv.KIND_AGENT, semconv.DUMP_PLACE: place, **identity}
        if dumped.identity.group:
            root[semconv.GROUP_ID] = dumped.identity.group
        for name, value in dumped.facts.items():
            if value is not None:
                root[name if "." in name else semconv.EXTRA_PREFIX + name] = value
        for name, value in dumped.rewards.items():
            if value is not None:
                root[semconv.SCORE_PREFIX + str(name)[: semconv.MAX_SCORE_NAME_CHARS]] = value
        of_root = DumpedCall(_NAME, root, dumped.times, dumped.error)
        yield self._span(trace_id, id_of(-1), "", of_root)
        for number, operation in enumerate(dumped.operations(id_of)):
            operation.attributes |= identity
            yield self._span(trace_id, id_of(number), id_of(-1), operation)

    def _attributes(self, identity: RolloutIdentity) -> dict[str, Any]:
        return {
            semconv.EXPERIMENT_NAME: self._experiment,
            semconv.STEP: 0 if identity.step is None else identity.step,
            semconv.SAMPLE_INDEX: identity.sample,
            semconv.ROLLOUT_N: identity.rollout,
            semconv.VALIDATE: identity.is_validation,
        }

    def _span(self, trace_id: str, span_id: str, parent: str, made: DumpedCall) -> MadeSpan:
        start, end = made.times or self._no_times()
        attributes = {name: _storable(value) for name, value in made.attributes.items()}
        return MadeSpan(trace_id, span_id, parent, made.name, start, end, attributes, made.error)

    def _no_times(self) -> Times:
        place = next(self._clock)
        return place, place


def _storable(value: Any) -> Any:
    """Return a value as an attribute can hold it; others are JSON text."""
    if isinstance(value, (str, float)) or (isinstance(value, int) and MIN_INT <= value <= MAX_INT):
        return value
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return value
    return as_json(value)
