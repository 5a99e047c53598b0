-- What the segments of each trajectory sum up to, in nanoseconds, the end of the last one, and the number of calls of
-- which it is not known when they ran: null for none. The sum of a phase without segments, or with such a call, is null.
-- If a process ended before its trajectory or sub-trajectory did, a call may be lost: it counts as one of unknown time.
-- So does a dump's trajectory without a timed call: its file may leave calls out.
SELECT
  trace_id AS phase_trace,
  CASE WHEN count(*) FILTER (WHERE kind = 'LLM') = count(spent_ns) FILTER (WHERE kind = 'LLM')
    THEN sum(spent_ns) FILTER (WHERE kind = 'LLM') END AS generate_ns,
  CASE WHEN count(*) FILTER (WHERE kind = 'TOOL') = count(spent_ns) FILTER (WHERE kind = 'TOOL')
    THEN sum(spent_ns) FILTER (WHERE kind = 'TOOL') END AS tool_ns,
  CASE WHEN count(*) FILTER (WHERE kind = 'EVALUATOR') = count(spent_ns) FILTER (WHERE kind = 'EVALUATOR')
    THEN sum(spent_ns) FILTER (WHERE kind = 'EVALUATOR') END AS reward_ns,
  sum(spent_ns) AS inside_ns, max(end_ns) AS last_ns,
  nullif(CASE WHEN count(spent_ns) = 0 THEN count(*) ELSE count(is_lost) - count(spent_ns) END, 0) AS untimed_calls,
  bool_or(is_lost) AS has_lost_calls
FROM (
  SELECT trace_id, kind, end_ns - start_ns AS spent_ns, end_ns, false AS is_lost FROM segments
  UNION ALL
  SELECT trace_id, kind, NULL AS spent_ns, NULL AS end_ns, false AS is_lost FROM spans
  WHERE kind IN ('LLM', 'TOOL', 'EVALUATOR') AND score_name IS NULL AND (start_time IS NULL OR duration_ns IS NULL)
  UNION ALL
  SELECT trace_id, NULL AS kind, NULL AS spent_ns, NULL AS end_ns, true AS is_lost FROM spans
  WHERE error_message = 'process ended before the trajectory did'
  UNION ALL
  SELECT trace_id, NULL AS kind, NULL AS spent_ns, NULL AS end_ns, NULL AS is_lost FROM spans
  WHERE is_root AND resource LIKE '%"rollout.dump.format":%'
) AS calls
GROUP BY trace_id
