"""What came of a trajectory, read off its lines; and whether its group is worth delivering for that."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.evaluations import Evaluation
from otel_rollout.recording.sampling import Group, group_hash

_TRACE: Final = re.compile(rb'"traceId":"([0-9a-f]{32})"')
_ERROR: Final = 2
_USUAL: Final = 1000
"""So many of the latest trajectories say what is usual …"""
_FEW: Final = 20
"""… unless they are fewer than this: then nothing is unusual."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


def trace_of(line: bytes) -> bytes | None:
    """The trace id of a recorded line, found without decoding it; None for what is no line of ours."""
    found = _TRACE.search(line)
    return bytes.fromhex(found[1].decode()) if found else None


class Trajectory:
    """What is known of a trace so far.

    Args:
        score: name of the score that counts.

    Attributes:
        since: when the first of it came.
        latest: when the last of it came.
        group: the group it belongs to; None while no line has said so, and where it is of none.
        group_size: how many siblings it is one of, if it says so.
        ended: whether its root is there.
        failed: whether anything in it is an error.
        size: bytes of its lines.
        tokens: tokens that models gave in it.
        seconds: how long it took.
    """

    def __init__(self, score: str) -> None:
        self._score_name = score
        self.since = self.latest = time.monotonic()
        self.group: Group | None = None
        self.group_size = 0
        self.ended = False
        self.failed = False
        self.size = 0
        self.tokens = 0
        self.seconds = 0.0
        self._root_id = ""
        # Id of the span that was scored → its newest score. A sub-trajectory's is not the trajectory's own.
        self._scores: dict[str, Evaluation] = {}

    @property
    def scored(self) -> bool:
        """Whether it has the score."""
        return self._newest_score() is not None

    @property
    def score(self) -> float | None:
        """The newest score, if that is a number, infinities included."""
        found = self._newest_score()
        return None if found is None else evaluations.number_of(found.value)

    def note(self, line: bytes) -> None:
        """Learn from a line of it. What cannot be read tells nothing."""
        self.latest = time.monotonic()
        self.size += len(line)
        try:
            for of_resource in orjson.loads(line)["resourceSpans"]:
                for of_scope in of_resource["scopeSpans"]:
                    for span in of_scope["spans"]:
                        self._note_span(span)
        except _UNREADABLE:
            return

    def _note_span(self, span: Mapping[str, Any]) -> None:
        said = {entry["key"]: _scalar(entry["value"]) for entry in span.get("attributes", ())}
        self.failed |= span.get("status", {}).get("code") == _ERROR
        if said.get(semconv.SPAN_KIND) == semconv.KIND_LLM:
            self.tokens += int(said.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS) or 0)
        if semconv.GEN_AI_EVALUATION_NAME in said:
            self._note_evaluation(span, said)
        is_root = not span.get("parentSpanId")
        if is_root or (self.group is None and not self.ended):
            self.group = _group_of(said)
        if is_root:
            self._note_root(span, said)

    def _note_root(self, span: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        self.ended = True
        self._root_id = str(span["spanId"])
        end_ns = int(span["endTimeUnixNano"])
        self.seconds = (end_ns - int(span["startTimeUnixNano"])) / 1e9
        size = said.get(semconv.GROUP_SIZE)
        self.group_size = size if isinstance(size, int) else 0
        for repeated in evaluations.repeated_in(said, end_ns):
            self._note_score(self._root_id, repeated)

    def _note_evaluation(self, span: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        recorded = evaluations.recorded_in(said, int(span["startTimeUnixNano"]))
        if recorded is not None:
            is_inside = recorded.origin == semconv.ORIGIN_PROCESS  # below whatever runs there, not the root
            self._note_score("" if is_inside else str(span.get("parentSpanId", "")), recorded)

    def _note_score(self, scored_id: str, score: Evaluation) -> None:
        known = self._scores.get(scored_id)
        if score.name == self._score_name and (known is None or score.rank >= known.rank):
            self._scores[scored_id] = score

    def _newest_score(self) -> Evaluation | None:
        own = ("", self._root_id) if self.ended else self._scores
        found = [self._scores[id_] for id_ in own if id_ in self._scores]
        return max(found, key=lambda score: score.rank, default=None)


def _group_of(said: Mapping[str, Any]) -> Group | None:
    group = Group.of({key: value for key, value in said.items() if key in semconv.IDENTITY})
    return None if group.sample_index is None else group


def _scalar(value: Any) -> Any:
    """An attribute's value as the recorder was given it; OTLP/JSON has integers as text. None for a list."""
    for kind, held in (value or {}).items():
        found = int(held) if kind == "intValue" else held
        return found if isinstance(found, (bool, int, float, str)) else None
    return None


class Verdict(NamedTuple):
    """Whether a group is delivered, and why."""

    kept: bool
    reason: str


class Judge:
    """Decides by what came of a group.

    Args:
        reasons: reason to keep a group → its number, as ``Settings.tail_rules`` gives them.
        budget: bytes of a step's spans that are delivered at most; 0: any number.
        seed: for the share that is kept whatever came of it.

    Attributes:
        spent: step → bytes of its groups that are kept already.
        needs_scores: whether any of the reasons is about scores.
    """

    FOR_ERRORS: Final = 0.25
    """Share of a step's bytes that only groups with errors may take: they are not known beforehand."""

    def __init__(self, reasons: Mapping[str, float], budget: int, seed: str) -> None:
        self._reasons = reasons
        self._budget = budget
        self._seed = f"outcome {seed}"
        self.spent: dict[str, int] = {}
        self._seconds: dict[bool, deque[float]] = {kind: deque(maxlen=_USUAL) for kind in (False, True)}
        self._tokens: dict[bool, deque[float]] = {kind: deque(maxlen=_USUAL) for kind in (False, True)}
        self.needs_scores = not reasons.keys().isdisjoint({"zero", "spread"})

    def learn(self, group: Group, trajectories: Collection[Trajectory]) -> None:
        """Let trajectories that ended count for what is usual."""
        for trajectory in trajectories:
            if trajectory.ended:
                self._seconds[bool(group.validate)].append(trajectory.seconds)
                self._tokens[bool(group.validate)].append(trajectory.tokens)

    def judge(self, group: Group, trajectories: Sequence[Trajectory]) -> Verdict:
        """Decide by what is known of the group, whatever there is room for."""
        reason = self._reason(group, trajectories)
        if reason is not None:
            return Verdict(True, reason)
        if not any(trajectory.ended for trajectory in trajectories):
            return Verdict(True, "elsewhere")
        if self.needs_scores and not all(trajectory.scored for trajectory in trajectories):
            return Verdict(False, "unscored")
        return Verdict(False, "ordinary")

    def _reason(self, group: Group, trajectories: Sequence[Trajectory]) -> str | None:
        """The first reason to keep it, the most telling first."""
        reasons, is_validation = self._reasons, bool(group.validate)
        scored = [t for t in trajectories if t.scored]
        scores = [t.score for t in scored if t.score is not None]
        ended = [t for t in trajectories if t.ended]
        found = {
            "errors": any(t.failed for t in trajectories),
            "validation": is_validation,
            "spread": bool(scores) and max(scores) - min(scores) > reasons.get("spread", 0),
            "zero": bool(scored) and all(t.score == 0 for t in scored),
            "slow": _is_beyond([t.seconds for t in ended], self._seconds[is_validation], reasons.get("slow")),
            "long": _is_beyond([t.tokens for t in ended], self._tokens[is_validation], reasons.get("long")),
            "rate": group_hash(group, self._seed) < reasons.get("rate", 0),
        }
        return next((name for name, holds in found.items() if holds and name in reasons), None)

    def admit(self, step: str, verdict: Verdict, size: int) -> Verdict:
        """The verdict with regard to what the step may still take."""
        if not verdict.kept or not self._budget:
            return verdict
        share = 1.0 if verdict.reason == "errors" else 1.0 - self.FOR_ERRORS
        if self.spent.get(step, 0) + size > share * self._budget:
            return Verdict(False, "budget")
        self.spent[step] = self.spent.get(step, 0) + size
        return verdict


def _is_beyond(values: Sequence[float], usual: Sequence[float], factor: float | None) -> bool:
    if factor is None or len(usual) < _FEW or not values:
        return False
    middle = median(usual)
    return middle > 0 and max(values) > factor * middle
