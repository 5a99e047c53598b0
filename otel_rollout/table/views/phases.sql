-- What the time of each trajectory went into, in seconds. Time in which several calls run belongs to the one that
-- began first. Waiting is the rest of the trajectory's duration; time after its end, such as of a reward that was
-- computed later, is no waiting.
WITH calls AS (
  SELECT
    trace_id, kind, start_ns, start_ns + duration_ns AS end_ns,
    max(start_ns + duration_ns) OVER (
      PARTITION BY trace_id ORDER BY start_ns, duration_ns DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS earlier_end_ns
  FROM spans
  WHERE kind IN ('LLM', 'TOOL', 'EVALUATOR') AND duration_ns > 0
), own AS (
  SELECT trace_id, kind, greatest(start_ns, coalesce(earlier_end_ns, start_ns)) AS start_ns, end_ns
  FROM calls
), summed AS (
  SELECT
    own.trace_id,
    sum(greatest(own.end_ns - own.start_ns, 0)) FILTER (WHERE own.kind = 'LLM') AS generate_ns,
    sum(greatest(own.end_ns - own.start_ns, 0)) FILTER (WHERE own.kind = 'TOOL') AS tool_ns,
    sum(greatest(own.end_ns - own.start_ns, 0)) FILTER (WHERE own.kind = 'EVALUATOR') AS reward_ns,
    sum(
      greatest(least(own.end_ns, root.start_ns + root.duration_ns) - greatest(own.start_ns, root.start_ns), 0)
    ) AS inside_ns
  FROM own JOIN roots AS root ON own.trace_id = root.trace_id
  GROUP BY own.trace_id
)
SELECT
  root.trace_id, root.run_id, root.project, root.experiment, root.step, root.sample_index, root.rollout_n,
  root.validate, root.duration_ns / 1e9 AS seconds, coalesce(summed.generate_ns, 0) / 1e9 AS generate_seconds,
  coalesce(summed.tool_ns, 0) / 1e9 AS tool_seconds, coalesce(summed.reward_ns, 0) / 1e9 AS reward_seconds,
  CASE WHEN root.duration_ns IS NOT NULL THEN greatest(root.duration_ns - coalesce(summed.inside_ns, 0), 0) / 1e9 END
    AS waiting_seconds
FROM roots AS root LEFT JOIN summed ON root.trace_id = summed.trace_id
