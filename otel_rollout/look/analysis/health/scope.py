"""Read the trajectories and spans of the checked run, each from the table once."""

from __future__ import annotations

import functools
import uuid
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.analysis.health import texts
from otel_rollout.look.analysis.health.findings import Finding
from otel_rollout.look.analysis.health.rates import Count
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.otlp.evaluations import ODD
from otel_rollout.table import filters, views
from otel_rollout.table.query import Engine

GROUP: Final = "CASE WHEN sample_index IS NOT NULL THEN group_path END"
"""SQL for the path of a group; null for a trajectory without a dataset row, which is in no group."""
UNIT: Final = f"coalesce({GROUP}, trace_id)"
"""SQL for what often fails as a whole: the group, or a trajectory that is in none."""
_TRAJECTORIES: Final = f"""
SELECT
  trace_id, step, sample_index, {GROUP} AS group_path, rollout_n, state, seconds, turns, tool_calls,
  tokens_out, policy_version_min, policy_version_max, finite_reward AS reward,
  reward IS NULL AND reward_label IS NULL AS has_no_reward
FROM finite_rewards"""  # noqa: S608

_COMPARED: Final = ("lag", "mismatch", "mismatch_mean")
"""Numbers of the trainer of which checks make means."""


class Scope:
    """The checked trajectories of a run: those of training, or those of validation if there are no others.

    All steps are read, because a step is compared with the others.

    Args:
        engine: queries the table.
        run: the run.
        steps: SQL condition on ``step`` and ``step_text`` that chooses the steps to judge; all by default.

    Attributes:
        engine: queries the table.
    """

    def __init__(self, engine: Engine, run: Run, steps: str | None = None) -> None:
        self.engine = engine
        self.run = run
        self._chosen = steps
        self._wanted = f"{run.condition} AND ({steps})" if steps else run.condition
        self._id = uuid.uuid4().hex[:12]
        self._made: list[str] = []

    @functools.cached_property
    def is_of_dump(self) -> bool:
        """Whether the run's trajectories were read from a dump."""
        is_dump = f"is_root AND {self.run.condition} AND resource LIKE '%\"{semconv.DUMP_FORMAT}\":%'"
        return bool(self.rows(f"SELECT trace_id FROM {views.RECORDED} WHERE {is_dump} LIMIT 1"))  # noqa: S608

    @functools.cached_property
    def validate(self) -> bool:
        """Whether the checked trajectories are of validation."""
        return not self.engine.count(f"roots WHERE {self._wanted} AND NOT validate")

    @functools.cached_property
    def condition(self) -> str:
        """SQL condition on the identity's columns: run, training or validation, ``is_numbered_or_chosen``."""
        of_run = f"{self.run.condition} AND {filters.equals('validate', self.validate)}"
        return f"{of_run} AND {self.is_numbered_or_chosen}"

    @property
    def is_numbered_or_chosen(self) -> str:
        """SQL condition on the identity's columns: the step has a number, or is one of the chosen steps.

        Findings do not distinguish steps without a number.
        """
        return f"(step IS NOT NULL OR {self._chosen})" if self._chosen else "true"

    @functools.cached_property
    def chosen(self) -> str:
        """SQL condition on the identity's columns: run, chosen steps, and training or validation."""
        return f"{self._wanted} AND {filters.equals('validate', self.validate)}"

    @functools.cached_property
    def steps(self) -> frozenset[int | None]:
        """The numbers of the steps to judge; None stands for steps without a number."""
        found = self.rows(f"SELECT DISTINCT step FROM roots WHERE {self.chosen}")  # noqa: S608
        return frozenset(row["step"] for row in found)

    @property
    def is_judged(self) -> str:
        """SQL condition that ``step`` is one of the steps to judge."""
        return filters.equals("step", list(self.steps)) if self._chosen else "true"

    def is_said_by(self, found: Finding) -> str:
        """Return the SQL condition that ``step`` is one of a finding's steps, else of the judged steps."""
        return filters.equals("step", found.steps) if found.steps else self.is_judged

    def spans_of(self, condition: str = "true") -> str:
        """Return the spans of the run's trajectories, or of some of them, as an SQL source.

        Each span has step and group of the trace's root: a sub-trajectory may have another identity, or not
        say that it is of validation.

        Args:
            condition: SQL condition on the trajectory.
        """
        of_run = filters.equals("span.run_id", self.run.run_id)
        return (
            "(SELECT span.* EXCEPT (step, sample_index, group_path), root.step, root.sample_index, "  # noqa: S608
            "root.group_path "
            f"FROM (SELECT * FROM {self._roots} WHERE {condition}) AS root "
            f"JOIN spans AS span ON span.trace_id = root.trace_id WHERE {of_run})"
        )

    @functools.cached_property
    def _roots(self) -> str:
        return self._table(
            "roots",
            "SELECT trace_id, run_id, project, experiment, step, step_text, sample_index, validate, "  # noqa: S608
            f"group_path, path FROM roots WHERE {self.condition}",
        )

    @functools.cached_property
    def trajectories(self) -> str:
        """Name of the table with the run's trajectories."""
        return self._table("trajectories", f"{_TRAJECTORIES} WHERE {self.condition}")

    @functools.cached_property
    def training(self) -> str:
        """Name of the table with what training made of the run's trajectories, without huge numbers."""
        finite = (f"CASE WHEN abs({name}) < {ODD} THEN {name} END AS {name}" for name in _COMPARED)
        rows = f"SELECT * REPLACE ({GROUP} AS group_path, {', '.join(finite)}) FROM training_rows"  # noqa: S608
        return self._table("training", f"{rows} WHERE {self.condition}")

    @functools.cached_property
    def groups(self) -> str:
        """Name of the table with the run's groups of two rewards or more, and whether these are all equal."""
        return self._table(
            "groups",
            "SELECT step, group_path, min(trace_id) AS trace_id, max(reward) = min(reward) AS has_one_reward "  # noqa: S608
            f"FROM {self.trajectories} WHERE reward IS NOT NULL AND group_path IS NOT NULL "
            "GROUP BY step, group_path HAVING count(*) > 1",
        )

    @property
    def is_over(self) -> str:
        """SQL condition that the step is over: the newest step is not, while one of its trajectories runs."""
        return (
            f"(step IS NULL OR step IS DISTINCT FROM (SELECT max(step) FROM {self.trajectories} "  # noqa: S608
            f"WHERE state = 'running' AND step = (SELECT max(step) FROM {self.trajectories})))"
        )

    @functools.cached_property
    def signs(self) -> str:
        """Name of the table with the signs of faults in the spans of each of the run's trajectories."""
        return self._of_run("sign_rows")

    @functools.cached_property
    def tools(self) -> str:
        """Name of the table with the tool calls of each of the run's trajectories, by tool and error."""
        return self._of_run("called_tools")

    def _of_run(self, view: str) -> str:
        """Return the name of a table with a view's rows of the run; rows of other runs are not computed."""
        if self.engine.is_merged:
            return self._table(view, f"SELECT * FROM {view} WHERE {self.condition}")  # noqa: S608
        tables = {"roots": self._roots}
        for name in views.needed_by(f"FROM {view}"):
            if (sql := views.over(name, tables)) != views.sql_of(name):
                tables[name] = self._table(name, sql)
        return tables[view]

    @functools.cached_property
    def looked(self) -> texts.Looked:
        """What the texts of the replies show."""
        size = self.rows(f"SELECT coalesce(sum(reply_bytes), 0) AS n FROM {self.signs}")[0]["n"]  # noqa: S608
        return texts.look(self.spans_of, size, self.engine.batches, UNIT)

    @functools.cached_property
    def size(self) -> int:
        """Number of trajectories of the chosen steps."""
        return self.engine.count(f"roots WHERE {self.chosen}")

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query that has few rows."""
        return self.engine.dicts(sql)

    def counts_of_sign(self, sign: str) -> list[Count]:
        """Return a count for each step: trajectories with a sign, among those for which the sign is known."""
        return self.counts(
            f"SELECT trace_id, step, {sign} AS is_bad FROM {self.signs} WHERE {sign} IS NOT NULL"  # noqa: S608
        )

    def counts(self, of_trajectories: str) -> list[Count]:
        """Return a count for each step.

        Args:
            of_trajectories: a SELECT of ``trace_id``, ``step`` and the bool ``is_bad``, one row per
                trajectory or group.
        """
        of_units = (
            "SELECT counted.step, count(*) AS number, count(*) FILTER (WHERE is_bad) AS bad, "  # noqa: S608
            "min(counted.trace_id) FILTER (WHERE is_bad) AS first, "
            "max(counted.trace_id) FILTER (WHERE is_bad) AS last "
            f"FROM ({of_trajectories}) AS counted "
            f"JOIN (SELECT trace_id, {UNIT} AS unit FROM {self._roots}) AS root "
            "ON counted.trace_id = root.trace_id GROUP BY counted.step, unit"
        )
        rows = self.rows(
            "SELECT step, CAST(sum(bad) AS BIGINT) AS bad, CAST(sum(number) AS BIGINT) AS of, "  # noqa: S608
            "count(*) FILTER (WHERE bad > 0) AS bad_groups, count(*) AS groups, min(first) AS first, "
            f"max(last) AS last FROM ({of_units}) AS units GROUP BY step ORDER BY step"
        )
        examples = [tuple(filter(None, (row.pop("first"), row.pop("last")))) for row in rows]
        return [Count(evidence=some, **row) for some, row in zip(examples, rows, strict=True)]

    def close(self) -> None:
        """Drop the tables that were made."""
        for name in self._made:
            self.engine.run(f"DROP {self.engine.kept_as} IF EXISTS {name}")
        self._made.clear()

    def _table(self, name: str, sql: str) -> str:
        made = f"health_{name}_{self._id}"
        self.engine.run(f"CREATE {self.engine.kept_as} {made} AS {sql}")
        self._made.append(made)
        return made
