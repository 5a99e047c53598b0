"""Check that scores by identity, and operations, belong to a trajectory."""

from __future__ import annotations

from typing import Any, Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.analysis.run_choice import operations_outside
from otel_rollout.look.conversation.formatting import counted, first_of, steps_in_words
from otel_rollout.table import filters

_NAMED: Final = 3
"""Maximum scores that a message names for each reason."""
_WHY: Final = {"unknown": "no trajectory has", "ambiguous": "several trajectories have"}
"""Reason → its words."""
_HINTS: Final = {
    "unknown": " That is no fault if OTEL_TRACES_SAMPLER, a sampler of the application or "
    "OTEL_ROLLOUT_SAMPLE_GROUPS left the trajectory out; OTEL_ROLLOUT_SAMPLE_RATE leaves out the scores, too."
}
"""Reason → sentence about causes that are no fault, and that the table does not show."""


def scores(scope: Scope) -> Finding:
    """Find scores by identity that belong to no trajectory, of the run or of another program."""
    others = _other_runs(scope)
    judged = f"{scope.is_judged} AND {scope.is_numbered_or_chosen}"
    condition = f"{_condition(scope, others)} AND {scope.is_over} AND {judged}"
    number = scope.engine.count(f"given_by_identity WHERE {condition}")
    if not number:
        return unobserved("No score names its trajectory by identity, in a step that is over.")
    named_else = f"NOT coalesce({filters.equals('experiment', scope.run.experiment)}, false)"
    is_strange = f"{filters.equals('run_id', others)} AND {named_else}" if others else "false"
    rows = scope.rows(
        "SELECT step, path, reason, count(*) AS scores, min(name) AS name, "  # noqa: S608
        f"count(*) FILTER (WHERE {is_strange}) AS of_others "
        f"FROM unresolved_scores WHERE {condition} "
        "GROUP BY step, path, reason ORDER BY step, path",
    )
    if not rows:
        return Finding("healthy", f"All {number:,} scores by identity belong to a trajectory.")
    named = tuple({row["step"]: None for row in rows})
    number = scope.engine.count(f"given_by_identity WHERE {condition} AND {filters.equals('step', named)}")
    unresolved = f"FROM unresolved_scores WHERE {condition} AND {is_strange}"
    strange = scope.rows(f"SELECT DISTINCT run_id {unresolved} ORDER BY run_id")
    said = [*(_said(reason, rows) for reason in _WHY), _of_others(rows, [row["run_id"] for row in strange])]
    message = (
        f"{sum(row['scores'] for row in rows):,} of {number:,} scores by identity, "
        f"in {steps_in_words(named)}, belong to no trajectory. {' '.join(filter(None, said))}"
    )
    return Finding("unhealthy", message, named, _candidates(scope, rows, condition))


def operations(scope: Scope) -> Finding:
    """Find steps most of whose trajectories are empty, while operations happened outside of trajectories.

    If trajectories have operations, other operations outside are no fault: a warm-up or a judge has them.
    """
    outside = operations_outside(scope.run)
    number = scope.engine.count(f"({outside}) AS operations")
    if not number:
        return Finding("healthy", "No operation lies outside of trajectories.")
    rows = scope.rows(
        "SELECT step, bare, number, count(*) AS operations "  # noqa: S608
        f"FROM ({_steps(scope)}) AS steps JOIN ({outside}) AS outside "
        "ON outside.start_ns BETWEEN began_ns AND ended_ns "
        f"WHERE 2 * bare > number AND {scope.is_judged} GROUP BY step, bare, number ORDER BY step"
    )
    if not rows:
        lie = "operation lies" if number == 1 else "operations lie"
        return Finding("healthy", f"{number:,} {lie} outside of trajectories that have operations, too.")
    bare, of = (sum(row[name] for row in rows) for name in ("bare", "number"))
    return Finding(
        "unhealthy",
        f"{bare:,} of {of:,} trajectories are empty, and {counted(number, 'operation')} outside of them: the "
        "caller's context is lost on the way. docs/recording.md says why; `otel-rollout doctor --ray` tests "
        "it.",
        tuple(row["step"] for row in rows),
    )


def _other_runs(scope: Scope) -> list[str | None]:
    """Return the runs of the project that have scores since this run began, but no trajectory."""
    rows = scope.rows(
        "SELECT DISTINCT given.run_id FROM given_by_identity AS given LEFT JOIN "  # noqa: S608
        "(SELECT DISTINCT coalesce(run_id, '') AS run_id FROM roots) AS own "
        "ON coalesce(given.run_id, '') = own.run_id "
        f"WHERE own.run_id IS NULL AND {filters.equals('given.project', scope.run.project)} "
        f"AND given.time_ns >= (SELECT min(start_ns) FROM roots WHERE {scope.run.condition}) "
        "ORDER BY given.run_id"
    )
    return [row["run_id"] for row in rows]


def _condition(scope: Scope, others: list[str | None]) -> str:
    """Return the SQL condition on the scores of the run, and of the other runs in its project."""
    of_run = scope.run.condition
    if others:
        project = filters.equals("project", scope.run.project)
        of_run = f"(({of_run}) OR ({project} AND ({filters.equals('run_id', others)})))"
    return f"{of_run} AND {filters.equals('coalesce(validate, false)', scope.validate)}"


def _of_others(rows: list[dict[str, Any]], others: list[str | None]) -> str:
    """Return how many unresolved scores other programs gave, and how such scores find their trajectories."""
    number = sum(row["of_others"] for row in rows)
    if not number:
        return ""
    names = first_of([f"`{run_id}`" if run_id else "no run" for run_id in others], _NAMED)
    return (
        f"{number:,} of the scores are of {names}, which has no trajectory: share OTEL_ROLLOUT_RUN_ID "
        "or the experiment's name between the programs."
    )


def _said(reason: str, rows: list[dict[str, Any]]) -> str:
    """Return how many identities could not be resolved for a reason, with names of some; empty if none."""
    having = [row for row in rows if row["reason"] == reason]
    if not having:
        return ""
    names = first_of([f"`{row['name']}` of {row['path']}" for row in having], _NAMED)
    plural, object_ = ("identity is", "it") if len(having) == 1 else ("identities are", "them")
    return (
        f"{len(having):,} {plural} {reason}, because {_WHY[reason]} {object_}: {names}."
        f"{_HINTS.get(reason, '')}"
    )


def _candidates(scope: Scope, rows: list[dict[str, Any]], condition: str) -> tuple[str, ...]:
    """Return trajectories that have the identity of ambiguous scores."""
    if all(row["reason"] != "ambiguous" for row in rows):
        return ()
    found = scope.rows(
        f"SELECT trace_id FROM (SELECT * FROM roots WHERE {scope.condition}) AS run "  # noqa: S608
        "JOIN (SELECT group_path, path, is_of_any_rollout FROM identity_scores "
        f"WHERE matches > 1 AND {condition}) AS given "
        "ON run.group_path = given.group_path AND (run.path = given.path OR given.is_of_any_rollout) "
        "GROUP BY trace_id ORDER BY trace_id LIMIT 10"
    )
    return tuple(row["trace_id"] for row in found)


def _steps(scope: Scope) -> str:
    """Return SQL for the steps: time, trajectories, and trajectories with nothing but root and scores."""
    return f"""
SELECT
  root.step, count(*) AS number, count(*) FILTER (WHERE own.trace_id IS NULL) AS bare,
  min(root.start_ns) AS began_ns, max(root.start_ns + coalesce(root.duration_ns, 0)) AS ended_ns
FROM roots AS root LEFT JOIN (
  SELECT DISTINCT trace_id FROM {scope.spans_of()} AS span WHERE NOT is_root AND score_name IS NULL
) AS own ON root.trace_id = own.trace_id
WHERE {scope.condition}
GROUP BY root.step"""  # noqa: S608
