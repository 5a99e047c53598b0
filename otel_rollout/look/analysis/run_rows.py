"""Keep a row per trajectory of a run, which the figures of a report are computed from."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from otel_rollout.table import engine_time
from otel_rollout.table.cut_replies import IS_CUT

if TYPE_CHECKING:
    from otel_rollout.look.analysis.run_choice import Run
    from otel_rollout.table.query import Engine

UNPARSED_CALL: Final = (
    "((status = 'error' AND (lower(name) LIKE '%extract_tool_calls%' OR lower(name) LIKE '%parse_tool_call%' "
    "OR (kind = 'TOOL' AND error_message LIKE 'Invalid JSON input for tool%'))) "
    "OR (kind = 'LLM' AND lower(finish_reason) LIKE '%malformed_function_call%'))"
)
"""Condition that a span tells of a tool call that cannot be parsed. It is one of:

- a failed call of a parser: ``extract_tool_calls`` of verl's parsers (the integration marks it when the
  parser logs that it drops a call) and of the demo's, or ``parse_tool_call``;
- a tool that the OpenAI Agents SDK did not call, because the arguments are no JSON;
- a model call that Gemini ends with ``MALFORMED_FUNCTION_CALL``.

A parser that takes a broken call for plain text, without an error or a log record, leaves no such span. The
check ``tool_calls_unparsable`` of health reads the texts of replies too.
"""


def rows_of(engine: Engine, run: Run) -> str:
    """Return the name of the table that has a row for each of a run's trajectories.

    The engine computes the rows once. Their columns are those of the view ``trajectories``, with a ``reward``
    that is null if it is not finite, ``has_odd_reward`` (NaN or infinite), ``has_no_reward`` (none was
    given), ``policy_lag``, the seconds of the view ``phases``, ``replies_ended`` (with a known reason),
    ``truncated``, ``unparsed``, and columns of the view ``training``, whose lag is ``trainer_lag``, and those
    of the view ``engine_time``.
    """
    name = f"rows_of_run_{zlib.crc32(run.condition.encode()):08x}"
    source = _WITH_REQUESTS if engine_time.is_recorded(engine) else _WITHOUT_REQUESTS
    engine.keep(name, _ROWS.replace("{engine_time}", source).replace("{run}", run.condition))
    return name


_ROWS: Final = f"""
WITH replies AS (
  SELECT trace_id, count(*) AS replies_ended, count(*) FILTER (WHERE {IS_CUT}) AS truncated
  FROM turns WHERE finish_reason IS NOT NULL GROUP BY trace_id
), parsed AS (
  SELECT trace_id, count(*) AS unparsed FROM spans WHERE {UNPARSED_CALL} GROUP BY trace_id
)
SELECT
  of_run.trace_id, of_run.step, of_run.sample_index, of_run.rollout_n, of_run.validate, of_run.path,
  of_run.group_path, of_run.state, of_run.error_type, of_run.start_time, of_run.seconds, of_run.turns,
  of_run.tool_calls, of_run.tool_errors, of_run.tokens_in, of_run.tokens_out,
  of_run.finite_reward AS reward, of_run.has_odd_reward,
  of_run.reward IS NULL AND of_run.reward_label IS NULL AS has_no_reward,
  CASE WHEN NOT of_run.validate THEN of_run.step - of_run.policy_version_min END AS policy_lag,
  of_run.policy_version_max > of_run.policy_version_min AS has_several_policies,
  phases.generate_seconds, phases.tool_seconds, phases.reward_seconds, phases.waiting_seconds,
  coalesce(replies.replies_ended, 0) AS replies_ended, coalesce(replies.truncated, 0) AS truncated,
  coalesce(parsed.unparsed, 0) AS unparsed,
  training.has_outcome, training.trained, training.reason, training.trained_tokens, training.advantage,
  training.trained_reward, training.reward_difference, training.lag AS trainer_lag, training.lag_source,
  training.mismatch, training.mismatch_mean, training.mismatch_turn, training.importance_ratio,
  training.not_finite, {", ".join(f"requested.{name}" for name in engine_time.COLUMNS)}
FROM (SELECT * FROM finite_rewards WHERE {{run}}) AS of_run
  LEFT JOIN training ON of_run.trace_id = training.trace_id
  LEFT JOIN phases ON of_run.trace_id = phases.trace_id
  LEFT JOIN replies ON of_run.trace_id = replies.trace_id
  LEFT JOIN parsed ON of_run.trace_id = parsed.trace_id
  LEFT JOIN {{engine_time}} AS requested ON of_run.trace_id = requested.trace_id
"""  # noqa: S608
_WITH_REQUESTS: Final = "engine_time"
_WITHOUT_REQUESTS: Final = (
    "(SELECT CAST(NULL AS VARCHAR) AS trace_id, "
    f"{', '.join(f'CAST(NULL AS DOUBLE) AS {name}' for name in engine_time.COLUMNS)} WHERE false)"
)
"""Source of the columns of ``engine_time``; a table without requests need not read the view."""
