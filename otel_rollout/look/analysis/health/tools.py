"""Check the tool calls for calls that cannot be parsed, and for bursts of one error."""

from __future__ import annotations

from typing import Any, Final

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import (
    Count,
    Fault,
    RateLimits,
    earlier,
    excess,
    fault_in,
    judged,
    of_steps,
    parts,
    share_of,
    steps_said,
    too_few,
    unsure,
)
from otel_rollout.look.analysis.health.scope import UNIT, Scope
from otel_rollout.look.analysis.health.texts import counts_of, mark
from otel_rollout.look.conversation.formatting import percent

_NO_CALL: Final = "No tool call was recorded."
_UNKNOWN: Final = "A dump does not say of each tool call whether it failed."
_UNPARSABLE: Final = Fault(
    RateLimits(rise=0.05, always=0.5, steady=0.35),
    "trajectories with a tool call",
    "one that cannot be parsed",
    _NO_CALL,
)
_BURST: Final = RateLimits(rise=0.1, always=0.9, steady=0.6)
"""SQL for the path of a group; a trajectory without a dataset row is a group of its own."""
_NAMED: Final = 3
"""Errors that a message names at most."""


def unparsable(scope: Scope) -> Finding:
    """Find steps in which the model writes tool calls that cannot be read."""
    # Some frameworks move the calls that can be read out of the text, so neither source has all calls.
    known = (
        f"SELECT trace_id, step, {UNIT} AS unit, has_unreadable FROM {scope.signs} "  # noqa: S608
        "WHERE has_unreadable IS NOT NULL"
    )
    calls = scope.looked.calls.copy()
    for row in scope.rows(known):
        mark(calls, (row["trace_id"], row["step"], row["unit"]), row["has_unreadable"])
    return judged(counts_of(calls), _UNPARSABLE, scope.steps, scope.looked.note)


def error_burst(scope: Scope) -> Finding:
    """Find a tool that suddenly fails with one error."""
    told = scope.rows(
        "SELECT count(*) AS calls, sum(known) AS known, coalesce(sum(calls - known), 0) AS unknown, "  # noqa: S608
        "coalesce(sum(known) FILTER (WHERE error IS NULL), 0) AS succeeded "
        f"FROM {scope.tools} WHERE is_of_run AND {scope.is_judged}"
    )[0]
    if not told["calls"]:
        return unobserved(_NO_CALL)
    if not told["known"] or (told["unknown"] and not told["succeeded"]):  # some dumps mark failures alone
        return unobserved(_UNKNOWN)
    series = _series(scope)
    chosen = {error: of_steps(counts, scope.steps) for error, counts in series.items()}
    unknown = f" The outcome of {told['unknown']:,} more calls is unknown." if told["unknown"] else ""
    found = {error: excess(counts, _BURST, scope.steps) for error, counts in series.items()}
    bursts = {error: each for error, each in found.items() if each.counts}
    if not bursts:
        return _unsure_rise(scope) or Finding("healthy", _steady(chosen) + unknown)
    worst = sorted(bursts, key=lambda error: -max(count.share for count in bursts[error].counts))
    counts = [count for error in worst for count in bursts[error].counts]
    message = " ".join(_burst(error, *bursts[error]) for error in worst[:_NAMED])
    more = f" And {len(worst) - _NAMED} other errors." if len(worst) > _NAMED else ""
    return fault_in(counts, message + more)


def _unsure_rise(scope: Scope) -> Finding | None:
    """Return the finding for the largest rise of a tool's errors of all classes that is no burst yet."""
    series = _series(scope, of_each_class=False)
    found = {tool: unsure(counts, _BURST, scope.steps) for (tool, _), counts in series.items()}
    rises = {tool: rise for tool, rise in found.items() if rise.counts}
    if not rises:
        return None
    tool = max(rises, key=lambda tool: share_of(rises[tool].counts))
    return too_few(rises[tool].counts, _burst((tool, ""), *rises[tool]))


def _burst(error: tuple[str, str], counts: list[Count], usual: float | None) -> str:
    tool, name = error
    failed = f"failed with {name}" if name else "failed"
    whole = f"trajectories with a call of it in {steps_said(counts)} ({percent(share_of(counts))})"
    return f"Tool `{tool}` {failed} in {parts(counts, whole)}.{earlier(usual)}"


def _steady(series: dict[tuple[str, str], list[Count]]) -> str:
    (tool, error), counts = max(series.items(), key=lambda each: share_of(each[1]))
    if not share_of(counts):
        return "No tool call failed."
    share = f"{parts(counts, 'trajectories with a call of it')} ({percent(share_of(counts))})"
    return (
        "No step has clearly more of a tool's errors than the steps before it. The most frequent error is "
        f"{error} of `{tool}`, in {share}."
    )


def _series(scope: Scope, of_each_class: bool = True) -> dict[tuple[str, str], list[Count]]:
    """Return for each tool and error: a count per step of the trajectories with a known call of the tool.

    Args:
        scope: the trajectories.
        of_each_class: whether each class of errors is counted by itself; all are "" otherwise.
    """
    by = "tool_name, step, error" if of_each_class else "tool_name, step"
    called = scope.rows(_counted(scope, "tool_name, step", "is_of_run AND known > 0"))
    failed = {
        (row["tool_name"], row.get("error", ""), row["step"]): row
        for row in scope.rows(_counted(scope, by, "is_of_run AND error IS NOT NULL"))
    }
    errors = grouped(dict.fromkeys((tool, error) for tool, error, _ in failed), lambda each: each[0])
    return {
        (tool, error): [_count(calls, failed.get((tool, error, calls["step"]))) for calls in rows]
        for tool, rows in grouped(called, lambda row: row["tool_name"]).items()
        for _, error in errors.get(tool, [(tool, "")])
    }


def _counted(scope: Scope, keys: str, condition: str) -> str:
    """Return SQL for the numbers of trajectories and groups; ``count(DISTINCT …)`` would need much memory."""
    of_trajectories = (
        f"SELECT {keys}, trace_id, {UNIT} AS of_group FROM {scope.tools} "  # noqa: S608
        f"WHERE {condition} GROUP BY {keys}, trace_id, of_group"
    )
    of_groups = (
        f"SELECT {keys}, count(*) AS number, min(trace_id) AS first, max(trace_id) AS last "  # noqa: S608
        f"FROM ({of_trajectories}) AS called GROUP BY {keys}, of_group"
    )
    return (
        f"SELECT {keys}, CAST(sum(number) AS BIGINT) AS number, min(first) AS first, max(last) AS last, "  # noqa: S608
        f"count(*) AS groups FROM ({of_groups}) AS grouped GROUP BY {keys} ORDER BY {keys}"
    )


def _count(calls: Any, failed: Any) -> Count:
    step, of, groups = calls["step"], calls["number"], calls["groups"]
    if not failed:
        return Count(step, 0, of, groups=groups)
    return Count(step, failed["number"], of, (failed["first"], failed["last"]), failed["groups"], groups)
