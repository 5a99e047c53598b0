"""Make spans from the trajectories of dumps, with ids that are computed from their content."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.trajectory import PARSED, DumpedCall, DumpedTrajectory, Times
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.origin import Resource, SpanScope
from otel_rollout.otlp.span import ERROR, OK, Span
from otel_rollout.table.json_text import MAX_INT, MIN_INT, as_json

_NAME: Final = "rollout_trace"
_RUN_DIGEST: Final = 3
"""Bytes of the digest in a run's id."""
_SCOPE: Final = SpanScope(semconv.SCOPE)


class DumpSpans:
    """Makes the spans of each trajectory of one run in one format.

    Spans without a time in the dump begin a few ns after the beginning of 1970, one ns apart. These numbers
    are an order, and no times.

    Args:
        format_: name of the format.
        run: the training run's folder or file, from which the run's id is computed.
        experiment: name of the training run.
        clock: counts the spans without times.
        seen: counts how often each trajectory has occurred, over all runs.

    Attributes:
        repeated: number of trajectories with the identity of an earlier one.
    """

    def __init__(
        self, format_: str, run: Path, experiment: str, clock: Iterator[int], seen: Counter[bytes]
    ) -> None:
        self.repeated = 0
        self._format = format_
        self._experiment = experiment
        self._clock = clock
        self._seen = seen
        self._identities: set[int] = set()
        number = blake2b(os.fsencode(run), digest_size=_RUN_DIGEST).hexdigest()
        self._resource = Resource(
            {semconv.RUN_ID: f"{format_}/{run.name}-{number}", semconv.DUMP_FORMAT: format_}
        )

    def of(self, dumped: DumpedTrajectory, place: str, mark: bytes) -> list[Span]:
        """Return the spans of a trajectory, its root first.

        Args:
            dumped: the trajectory.
            place: file and line, for a person.
            mark: digest that identifies the trajectory's record.
        """
        trace_id = self._trace_id(dumped, mark)
        step, sample, rollout, is_validation, group = dumped.identity
        identity = _attributes(
            {
                semconv.PROJECT_NAME: dumped.facts.get(semconv.PROJECT_NAME),
                semconv.EXPERIMENT_NAME: self._experiment,
                semconv.STEP: step,
                semconv.SAMPLE_INDEX: sample,
                semconv.ROLLOUT_N: rollout,
                semconv.VALIDATE: is_validation,
            }
        )
        root = {
            semconv.SPAN_KIND: semconv.KIND_AGENT,
            semconv.DUMP_PLACE: place,
            semconv.GROUP_ID: group or None,
            semconv.POLICY_VERSION_MIN: dumped.versions[0],
            semconv.POLICY_VERSION_MAX: dumped.versions[1],
        }
        if any(message.get(PARSED) for message in dumped.messages):
            root[semconv.EXTRA_PREFIX + "parsed"] = "turns and tool calls are parsed from the text"
        for name, value in dumped.facts.items():
            root[name if "." in name else semconv.EXTRA_PREFIX + name] = value
        scores = []
        for name, value in dumped.rewards.items():
            short = str(name)[: semconv.MAX_SCORE_NAME_CHARS]
            root[semconv.SCORE_PREFIX + short] = value
            comment = dumped.comments.get(name)
            if value is not None and (comment or dumped.is_running):
                scores.append(_evaluation(short, _storable(value), comment, dumped.times))

        def id_of(number: int) -> str:
            return f"{trace_id[:11]}{number + 1:05x}"

        root_id = id_of(-1)
        calls = [
            DumpedCall(_NAME, root, dumped.times, dumped.error, is_endless=dumped.is_running),
            *dumped.calls(id_of),
            *scores,
        ]
        return [
            self._span((trace_id, id_of(number), "" if number < 0 else root_id), call, identity)
            for number, call in enumerate(calls, start=-1)
        ]

    def _trace_id(self, dumped: DumpedTrajectory, mark: bytes) -> str:
        """Return a trace id that is computed from the trajectory's content, and not from the file's path.

        If the same trajectory occurs again, for example in a copy of its file, it gets another id.
        """
        identity = dumped.identity[:4]
        self.repeated += (named := hash(repr(identity))) in self._identities
        self._identities.add(named)
        told = dumped.key or (mark, *identity)
        key = blake2b(repr((self._format, told)).encode(), digest_size=16)
        self._seen[key.digest()] += 1
        if (count := self._seen[key.digest()]) > 1:
            key.update(b"%d" % count)
        return key.hexdigest()

    def _span(self, ids: tuple[str, str, str], made: DumpedCall, identity: dict[str, Any]) -> Span:
        return Span.made(
            ids,
            made.name,
            made.times or (next(self._clock),) * 2,
            _attributes(made.attributes) | identity,
            is_running=made.is_endless,
            status=ERROR if made.error else OK if made.has_succeeded else 0,
            message=made.error,
            resource=self._resource,
            scope=_SCOPE,
        )


def _evaluation(name: str, value: evaluations.Value, comment: str | None, times: Times | None) -> DumpedCall:
    """Return the evaluation of a score with a comment, or in a running trajectory: no root can hold it."""
    said = evaluations.attributes_of(name, value, comment, None)
    end = times and (times[1], times[1])
    return DumpedCall(f"score {name}", {semconv.SPAN_KIND: semconv.KIND_EVALUATOR, **said}, end)


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known values in types that span attributes can have."""
    return {name: _storable(value) for name, value in given.items() if value is not None}


def _storable(value: Any) -> Any:
    """Return a value that a span attribute can have; a value of another type becomes JSON text."""
    if isinstance(value, (str, float)) or (isinstance(value, int) and MIN_INT <= value <= MAX_INT):
        return value
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return value
    return as_json(value)
