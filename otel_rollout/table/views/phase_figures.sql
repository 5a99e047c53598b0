-- What the segments of each trajectory sum up to, in nanoseconds, and the end of the last one.
SELECT
  trace_id AS phase_trace,
  sum(end_ns - start_ns) FILTER (WHERE phase = 'generate') AS generate_ns,
  sum(end_ns - start_ns) FILTER (WHERE phase = 'tool') AS tool_ns,
  sum(end_ns - start_ns) FILTER (WHERE phase = 'reward') AS reward_ns,
  sum(end_ns - start_ns) AS inside_ns,
  max(end_ns) AS last_ns
FROM segments
GROUP BY trace_id
