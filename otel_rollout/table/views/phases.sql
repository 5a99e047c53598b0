-- What the time of each trajectory went into, in seconds. Time in which several calls run belongs to the one that
-- began first. A call counts from the trajectory's start to its end; a reward that is computed after its end counts,
-- too. Waiting is the rest of the trajectory's duration.
WITH clipped AS (
  SELECT
    call.trace_id, call.kind, greatest(call.start_ns, root.start_ns) AS start_ns,
    CASE
      WHEN call.kind = 'EVALUATOR' OR root.duration_ns IS NULL THEN call.start_ns + call.duration_ns
      ELSE least(call.start_ns + call.duration_ns, root.start_ns + root.duration_ns)
    END AS end_ns
  FROM spans AS call JOIN roots AS root ON call.trace_id = root.trace_id
  WHERE call.kind IN ('LLM', 'TOOL', 'EVALUATOR') AND call.duration_ns > 0
), calls AS (
  SELECT
    *,
    max(end_ns) OVER (
      PARTITION BY trace_id ORDER BY start_ns, end_ns DESC, kind ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS earlier_end_ns
  FROM clipped
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
