"""Hold scores by identity until their trajectories are found in the target.

The transaction that moves the cursor past a score's line stores the score in the ledger. The transaction that
counts the score removes it. So a restarted forwarder goes on where the last one stopped. A forwarder that is
killed between the target's answer and the second transaction sends the score again; a target stores it once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.account.ledger import HeldScore, Ledger
from otel_rollout.account.ledger_reader import Tally
from otel_rollout.base import semconv
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.waits import waits
from otel_rollout.deliver import retry_policy
from otel_rollout.deliver.batch_sender import failure_of
from otel_rollout.deliver.dead_letters import DeadLetters
from otel_rollout.deliver.lines import Line
from otel_rollout.exporting.api import ExportFailure, FailureKind, ResolvesIdentities
from otel_rollout.exporting.base import form_for
from otel_rollout.exporting.batching import chunks, grouped
from otel_rollout.otlp.json_line import TraceLine
from otel_rollout.otlp.scan import StepKey, step_of
from otel_rollout.otlp.score_identity import (
    Candidate,
    TrajectoryIdentity,
    Unresolved,
    trajectory_of,
)
from otel_rollout.otlp.span import Span

MAX_HELD: Final = 20_000
"""Maximum scores that wait. The cursor of a segment stops before a further one."""
SCORES_PER_EXPORT: Final = 1000
"""Maximum scores that are exported at once."""
_STEPS_PER_SEARCH: Final = 10
"""Maximum steps whose trajectories are in memory at once."""

_REASONS: Final = {
    Unresolved.UNKNOWN: "no trajectory of this identity was delivered in time",
    Unresolved.AMBIGUOUS: "several trajectories have this identity",
}


@dataclass(frozen=True)
class _Wanted:
    """A held score, the identity that it names, and when it was given, Unix time in ns."""

    held: HeldScore
    identity: TrajectoryIdentity
    given_ns: int

    @property
    def span(self) -> Span:
        """The score's span."""
        return TraceLine(self.held.line).spans[0]

    @property
    def step(self) -> TrajectoryIdentity:
        """The identity of the trajectory's step: one search finds all its trajectories."""
        return self.identity._replace(sample_index="", rollout_n="", run="")


@dataclass
class _Turn:
    """A search for trajectories, which makes room for other work when its time is over.

    Attributes:
        ledger: counts the scores.
        end: when other work is next, by the monotonic clock.
        added: the counts that were added to the ledger.
    """

    ledger: Ledger
    end: float
    added: dict[StepKey, Tally] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether other work is next; a turn without results lasts until all scores were searched."""
        return bool(self.added) and time.monotonic() >= self.end


class IdentityScores:
    """The scores by identity of one exporter. Not thread-safe: used by the delivery's thread.

    Args:
        name: the exporter's name.
        exporter: finds trajectories.
        dead_letters: gets scores that belong to no trajectory.
        running: returns the open roots of this machine.
    """

    def __init__(
        self,
        name: str,
        exporter: ResolvesIdentities,
        dead_letters: DeadLetters,
        running: Callable[[], Iterable[Span]] = lambda: (),
    ) -> None:
        self._name = name
        self._exporter = exporter
        self._dead_letters = dead_letters
        self._held: dict[tuple[str, int], _Wanted] = {}
        self._is_loaded = False
        self._next_search = 0.0
        self._searches = 0
        self._over_since: float | None = None
        self._own: dict[TrajectoryIdentity, bool] = {}
        self._look_at_running = running
        self._running: set[TrajectoryIdentity] = set()

    @property
    def held(self) -> Sequence[HeldScore]:
        """The scores that wait."""
        return [one.held for one in self._held.values()]

    @property
    def room(self) -> int:
        """Number of further scores that may wait."""
        return MAX_HELD - len(self._held)

    @property
    def is_empty(self) -> bool:
        """Whether no score waits; False before :meth:`load`."""
        return self._is_loaded and not self._held

    def load(self, ledger: Ledger) -> None:
        """Read the waiting scores from the ledger."""
        self._held.clear()
        self._is_loaded = True
        self.add(ledger.held_scores(self._name))

    def add(self, scores: Iterable[HeldScore]) -> None:
        """Add scores that the ledger holds now, and search for their trajectories soon."""
        for score in scores:
            self._held[score.segment, score.end] = _wanted(score)
            self._next_search, self._searches = 0.0, 0

    def is_due(self) -> bool:
        """Return whether to search now."""
        return bool(self._held) and time.monotonic() >= self._next_search

    def resolve(self, ledger: Ledger, is_over: bool) -> dict[StepKey, Tally]:
        """Search for trajectories, and deliver or reject the scores whose search has ended.

        If that takes longer than ``Waits.score_turn``, the other scores are due at once.

        Args:
            ledger: counts the scores.
            is_over: whether everything else is delivered, and no process records any more.

        Returns:
            The counts that were added to the ledger.
        """
        if not is_over:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = time.monotonic()
        self._own.clear()
        running = [_identity_of(root) for root in self._look_at_running()]
        self._running = {*running, *(one._replace(rollout_n="") for one in running)}
        turn = _Turn(ledger, time.monotonic() + waits().score_turn)
        failure = None
        by_step = grouped(self._held.values(), lambda one: one.step)
        for steps in chunks(by_step.values(), _STEPS_PER_SEARCH):
            failure = self._resolve(turn, steps)
            if failure is not None:
                logger.warning("%s: scores wait for their trajectories: %s", self._name, failure.message)
                break
            if turn.is_over:
                self._next_search = 0.0
                return turn.added
        pause = retry_policy.pause_after(failure, self._searches) if failure else self._pause(is_over)
        self._searches += 1
        self._next_search = time.monotonic() + pause
        return turn.added

    def _pause(self, is_over: bool) -> float:
        pause = retry_policy.pause(self._searches)
        return min(pause, waits().last_search) if is_over else pause

    def _resolve(self, turn: _Turn, steps: Sequence[Sequence[_Wanted]]) -> ExportFailure | None:
        """Search for the trajectories of some steps, once; deliver or reject the steps' scores."""
        found = self._exporter.find_trajectories([wanted[0].identity for wanted in steps])
        if isinstance(found, ExportFailure):
            return found
        by_identity = grouped(found, lambda candidate: candidate.identity._replace(rollout_n="", run=""))
        for wanted in chunks((one for of_step in steps for one in of_step), SCORES_PER_EXPORT):
            failure = self._settle(turn, wanted, by_identity)
            if failure is not None or turn.is_over:
                return failure
        return None

    def _settle(
        self,
        turn: _Turn,
        wanted: Sequence[_Wanted],
        by_identity: Mapping[TrajectoryIdentity, Sequence[Candidate[str]]],
    ) -> ExportFailure | None:
        """Deliver scores whose trajectories are found; reject those whose search has ended."""
        resolved: list[tuple[_Wanted, Candidate[str]]] = []
        unresolved: dict[Unresolved, list[_Wanted]] = {}
        for one in wanted:
            candidates = by_identity.get(one.identity._replace(rollout_n="", run=""), ())
            result = self._result(one, candidates)
            if isinstance(result, ExportFailure):
                return result
            if isinstance(result, Candidate):
                resolved.append((one, result))
            elif result is not None:
                unresolved.setdefault(result, []).append(one)
        for reason, scores in unresolved.items():
            self._reject(turn, scores, _REASONS[reason], reason.value)
        return self._deliver(turn, resolved)

    def _result(
        self, one: _Wanted, candidates: Sequence[Candidate[str]]
    ) -> Candidate[str] | Unresolved | ExportFailure | None:
        """Return a score's trajectory, why it has none, or None while it waits."""
        chosen = trajectory_of(one.identity, candidates, has_own=True, given_ns=one.given_ns)
        if chosen is Unresolved.AMBIGUOUS:
            return chosen
        # A score that names no rollout may fit siblings that are delivered later.
        is_exact = isinstance(chosen, Candidate) and chosen.identity.rollout_n == one.identity.rollout_n
        if not is_exact and not self._is_late(one):
            return None
        if isinstance(chosen, Candidate):
            return chosen
        key = TrajectoryIdentity(one.identity.project, "", "", "", "", False, one.identity.run)
        if candidates and key not in self._own:
            has_own = bool(self._running) or self._exporter.has_trajectories(key.project, key.run)
            if isinstance(has_own, ExportFailure):
                return has_own
            self._own[key] = has_own
        has_own = self._own.get(key, True)
        return trajectory_of(one.identity, candidates, has_own=has_own, given_ns=one.given_ns)

    def _is_late(self, one: _Wanted) -> bool:
        held = one.held
        if one.identity in self._running:
            self._held[held.segment, held.end] = replace(one, held=held._replace(since=time.time()))
            return False
        if self._over_since is not None and time.monotonic() - self._over_since >= waits().last_score:
            return True
        return time.time() - held.since >= waits().score

    def _deliver(self, turn: _Turn, scores: Sequence[tuple[_Wanted, Candidate[str]]]) -> ExportFailure | None:
        """Export scores; halve a rejected batch until only the score at fault is left."""
        if not scores:
            return None
        form = form_for(self._exporter)
        result = self._exporter.export_scores([(form(one.span), candidate) for one, candidate in scores])
        if result is SpanExportResult.SUCCESS:
            self._release(turn, [one for one, _ in scores], Tally(delivered=1))
            return None
        failure = failure_of(self._exporter)
        if failure.kind is not FailureKind.REJECTED:
            return failure
        if len(scores) == 1:
            self._reject(turn, [scores[0][0]], failure.message)
            return None
        middle = len(scores) // 2
        return self._deliver(turn, scores[:middle]) or self._deliver(turn, scores[middle:])

    def _reject(
        self, turn: _Turn, scores: Sequence[_Wanted], reason: str, counted_as: str | None = None
    ) -> None:
        for one in scores:
            line = Line(one.held.segment, one.held.end, one.held.line, TraceLine)
            named = f"{one.span.name} of {one.identity.path}: {reason}" if counted_as else reason
            self._dead_letters.add(line, named)
        self._release(turn, scores, Tally(rejected=1), {counted_as: len(scores)} if counted_as else {})

    def _release(
        self, turn: _Turn, scores: Sequence[_Wanted], each: Tally, unresolved: Mapping[str, int] = {}
    ) -> None:
        steps = Counter(step_of(one.held.line) for one in scores)
        tallies = {
            step: Tally(each.delivered * number, each.rejected * number) for step, number in steps.items()
        }
        turn.ledger.release(self._name, [one.held for one in scores], tallies, unresolved)
        for one in scores:
            self._held.pop((one.held.segment, one.held.end), None)
        for step, tally in tallies.items():
            turn.added[step] = turn.added.get(step, Tally()) + tally


def _wanted(held: HeldScore) -> _Wanted:
    span = TraceLine(held.line).spans[0]
    return _Wanted(held, _identity_of(span), span.start_ns)


def _identity_of(span: Span) -> TrajectoryIdentity:
    return TrajectoryIdentity.of(span.attributes, span.resource.attributes.get(semconv.RUN_ID))
