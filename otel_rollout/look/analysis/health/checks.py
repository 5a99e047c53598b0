"""List the checks of a run, built in and installed by users, and run them.

A user's check is an entry point of the group ``otel_rollout_health_check``. It is a function ``(table:
RolloutTable, run: Run) -> Finding | Iterable[Finding]``, or the text of a SELECT that has rows if the run is
unhealthy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple

from otel_rollout.base.suggest import unknown
from otel_rollout.look.analysis.health import (
    outside,
    policy,
    replies,
    rewards,
    tools,
    trained_numbers,
    training,
    workers,
)
from otel_rollout.look.analysis.health.findings import MAX_EVIDENCE, Finding, Health, unobserved
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.analysis.run_choice import Run, no_step, paths_of
from otel_rollout.look.analysis.timeline.workers import MIN_CALLS
from otel_rollout.look.conversation.formatting import first_of
from otel_rollout.look.rollout_table import open_table
from otel_rollout.table.errors import TableError
from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError

_GROUP: Final = "otel_rollout_health_check"
_PLACE: Final = "{run}"
"""Placeholder in a check in SQL for the condition on run, steps, and training or validation."""
_MAX_ROWS: Final = 10_000
"""Maximum rows that are read of a check in SQL."""
_NAMED: Final = 3
"""Maximum messages of a check in SQL that its finding has."""
_TRACE: Final = re.compile(r"[0-9a-f]{32}")
_logger = logging.getLogger(__name__)


class Check(NamedTuple):
    """A check.

    Attributes:
        name: its name, which ``--only`` and ``--skip`` take.
        answer: returns its finding, or several.
        way: how to observe what it needs; empty if a run may rightly lack that, such as tools.
        not_in_dump: what it needs and no dump says; empty if some dump may say enough.
        is_own: whether a user has installed it.
    """

    name: str
    answer: Callable[[Scope], Finding | Iterable[Finding]]
    way: str = ""
    not_in_dump: str = ""
    is_own: bool = False


_REWARD: Final = 'score("reward", …) in each trajectory'
_TEXTS: Final = "record messages and replies: an operation of kind LLM with its input and output"
_LENGTHS: Final = "record gen_ai.response.finish_reasons, or tokens and their limit, on model calls"
_IDS: Final = "record the token ids of prompts and answers: docs/training.md"
_SIBLINGS: Final = 'score("reward", …), and sample_index for the siblings'
_VERSIONS: Final = "rollout_trace_attr(…, policy_version_min=…, policy_version_max=…)"
_OF_TRAINER: Final = "score what training made of the trajectories: docs/training.md"
_CALLS: Final = f"record {MIN_CALLS} calls or more of one operation in each of two processes"
BUILT_IN: Final = (
    Check("reward_missing", rewards.missing, _REWARD),
    Check("reward_constant", rewards.constant, _REWARD),
    Check("groups_without_spread", rewards.groups_without_spread, _SIBLINGS),
    Check("replies_truncated", replies.truncated, _LENGTHS),
    Check("replies_repetitive", replies.repetitive, _TEXTS),
    Check("replies_empty", replies.empty, _TEXTS),
    Check("tool_calls_unparsable", tools.unparsable),
    Check("tool_error_burst", tools.error_burst),
    Check("siblings_identical", replies.copied),
    Check("special_tokens_in_text", replies.special_tokens, _TEXTS),
    Check("context_edited", replies.edited, not_in_dump="what each model call was sent"),
    Check("answers_retokenized", replies.retokenized, _IDS),
    Check("reward_disagrees", rewards.disagrees),
    Check("policy_lag", policy.lag, _VERSIONS),
    Check("slow_worker", workers.slow, _CALLS),
    Check("sampler_mismatch", trained_numbers.sampler_differs, _OF_TRAINER),
    Check("training_lag", training.stale, _OF_TRAINER),
    Check("training_left_out", training.left_out, _OF_TRAINER),
    Check("trained_reward_differs", trained_numbers.reward_differs, _OF_TRAINER),
    Check("training_not_finite", trained_numbers.not_finite, _OF_TRAINER),
    Check("scores_unresolved", outside.scores),
    Check("operations_outside", outside.operations, not_in_dump="what ran outside of trajectories"),
)
WAYS: Final = {check.name: check.way for check in BUILT_IN if check.way}
"""Check → how to observe what it needs."""


def chosen(only: Sequence[str] = (), skip: Sequence[str] = (), table: str = "") -> list[Check]:
    """Return the checks to run: those of this package, then those that users have installed.

    A user's check takes the place of ours with the same name.

    Args:
        only: names of the checks to run; all by default.
        skip: names of checks not to run.
        table: address of the table, for checks in Python.

    Raises:
        QueryError: there is no check of a name.
    """
    points = {point.name: point for point in entry_points(group=_GROUP)}
    of_users = [
        Check(name, partial(_answer_of_user, points[name], table), is_own=True) for name in sorted(points)
    ]
    replaced = {check.name for check in of_users}
    checks = [*(check for check in BUILT_IN if check.name not in replaced), *of_users]
    names = [check.name for check in checks]
    for name in (*only, *skip):
        if name not in names:
            raise QueryError(unknown("check", name, names))
    return [check for check in checks if check.name not in skip and (not only or check.name in only)]


def health_of(engine: Engine, run: Run, checks: Iterable[Check], steps: str | None = None) -> Health:
    """Run checks on a run.

    Args:
        engine: queries the table.
        run: the run.
        checks: the checks, from :func:`chosen`.
        steps: SQL condition on ``step`` and ``step_text`` that chooses the steps to judge; all by default.
            Earlier steps are read too, for comparison.

    Raises:
        QueryError: the run has no trajectory in these steps, or the table cannot be read.
    """
    scope = Scope(engine, run, steps)
    try:
        if not scope.size:
            raise no_step(engine, run, "trajectory in these steps")
        findings = [finding for check in checks for finding in _answers(check, scope)]
        return Health(run, scope.size, tuple(_with_paths(scope, findings)), scope.validate, scope.is_of_dump)
    finally:
        scope.close()


def _answers(check: Check, scope: Scope) -> Iterator[Finding]:
    """Yield the findings of a check; the finding of a check that raises is ``unobserved``."""
    try:
        if check.not_in_dump and scope.is_of_dump:
            yield _complete(unobserved(f"A dump does not say {check.not_in_dump}."), check.name)
            return
        found = check.answer(scope)
        listed = [found] if isinstance(found, Finding) else list(found)
        for finding in listed or [Finding("healthy", "The check has found nothing.")]:
            yield _complete(finding, check.name)
    except Exception as error:
        if isinstance(error, TableError) and not check.is_own:  # the table itself cannot be read
            raise
        _logger.debug("check %s has failed", check.name, exc_info=True)
        message = " ".join(str(error).split()) or "no message"
        failed = unobserved(f"The check has failed: {type(error).__name__}: {message}")
        yield replace(failed, name=check.name)


def _complete(finding: Finding, name: str) -> Finding:
    if not isinstance(finding, Finding):
        raise TypeError(f"expected a Finding, and got {type(finding).__name__}")
    if finding.status not in ("healthy", "unhealthy", "unobserved"):
        raise ValueError(f"the status is {finding.status!r}; expected healthy, unhealthy or unobserved")
    return replace(
        finding,
        name=finding.name or name,
        steps=tuple(sorted({int(step) for step in finding.steps if step is not None})),
        evidence=tuple(dict.fromkeys(map(str, finding.evidence)))[:MAX_EVIDENCE],
    )


def _with_paths(scope: Scope, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield findings with paths in place of trace ids as evidence.

    A trace id stays where ``show`` would take the path for another trajectory's.
    """
    traces = (trace for each in findings for trace in each.evidence if _TRACE.fullmatch(trace))
    paths = paths_of(scope.engine, scope.run, traces)
    for each in findings:
        yield replace(each, evidence=tuple(paths.get(trace, trace) for trace in each.evidence))


def _answer_of_user(point: EntryPoint, table: str, scope: Scope) -> Finding | Iterable[Finding]:
    """Load and run a user's check.

    The check is loaded only here, so that a check that cannot be imported harms no other check.

    Raises:
        Exception: whatever a user's function raises.
    """
    check = point.load()
    if isinstance(check, str):
        return _of_rows(_rows(scope, check))
    if not callable(check):
        raise TypeError(f"{point.value} is neither a function nor the text of a SELECT")
    found: Any = check(open_table(table), scope.run)
    if not isinstance(found, Finding) and not isinstance(found, Iterable):
        raise TypeError(f"{point.value} returned {type(found).__name__}; it must return a Finding")
    return found


def _rows(scope: Scope, sql: str) -> list[dict[str, Any]]:
    if _PLACE not in sql:
        raise ValueError(f"the SELECT has no {_PLACE}, which stands for the condition on the run")
    wanted = sql.replace(_PLACE, f"({scope.chosen})")
    return scope.engine.dicts(scope.engine.check(wanted), _MAX_ROWS)


def _of_rows(rows: list[dict[str, Any]]) -> Finding:
    """Return the finding for the rows of a SELECT: unhealthy if there are any."""
    if not rows:
        return Finding("healthy", "The SELECT has no row.")
    number = f"{len(rows):,}{' or more' if len(rows) == _MAX_ROWS else ''} row{'s' if len(rows) > 1 else ''}"
    steps = {row["step"] for row in rows if isinstance(row.get("step"), int)}
    evidence = tuple(name for row in rows if (name := row.get("trace_id") or row.get("path")))
    said = dict.fromkeys(str(row["message"]) for row in rows if row.get("message"))
    message = first_of(list(said), _NAMED, joint="; ") or "The SELECT has rows"
    return Finding("unhealthy", f"{message} ({number}).", tuple(sorted(steps)), evidence)
