-- What the time of each trajectory went into, in seconds: from its start to its end, or to that of its last reward.
-- Waiting is what no call takes of it.
WITH summed AS (
  SELECT
    part.trace_id,
    sum(part.end_ns - part.start_ns) FILTER (WHERE part.phase = 'generate') AS generate_ns,
    sum(part.end_ns - part.start_ns) FILTER (WHERE part.phase = 'tool') AS tool_ns,
    sum(part.end_ns - part.start_ns) FILTER (WHERE part.phase = 'reward') AS reward_ns,
    sum(part.end_ns - part.start_ns) AS inside_ns,
    max(part.end_ns) AS last_ns
  FROM segments AS part
  GROUP BY part.trace_id
)
SELECT
  root.trace_id, root.run_id, root.project, root.experiment, root.step, root.sample_index, root.rollout_n,
  root.validate, CASE WHEN root.start_time IS NOT NULL THEN root.duration_ns / 1e9 END AS seconds,
  CASE WHEN root.start_time IS NOT NULL THEN coalesce(summed.generate_ns, 0) / 1e9 END AS generate_seconds,
  CASE WHEN root.start_time IS NOT NULL THEN coalesce(summed.tool_ns, 0) / 1e9 END AS tool_seconds,
  CASE WHEN root.start_time IS NOT NULL THEN coalesce(summed.reward_ns, 0) / 1e9 END AS reward_seconds,
  CASE
    WHEN root.start_time IS NOT NULL AND root.duration_ns IS NOT NULL
      THEN (greatest(root.duration_ns, coalesce(summed.last_ns - root.start_ns, 0)) - coalesce(summed.inside_ns, 0)) / 1e9
  END AS waiting_seconds
FROM roots AS root LEFT JOIN summed ON root.trace_id = summed.trace_id
