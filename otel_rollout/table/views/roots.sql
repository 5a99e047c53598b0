-- The span that stands for each trajectory: the root; without it, the first agent's span (its parent is in
-- another system); without that, the earliest span, and the trajectory runs.
SELECT
  trace_id, span_id, run_id, project, experiment, step, sample_index, rollout_n, validate, group_id, group_size,
  agent_name, policy_version_min, policy_version_max, name,
  CASE WHEN status = 'error' THEN 'error' ELSE 'ok' END AS state,
  error_type, error_message, start_time, start_ns, duration_ns, scores
FROM spans
WHERE is_root AND validate IS NOT NULL
UNION ALL
SELECT
  trace_id, span_id, run_id, project, experiment, step, sample_index, rollout_n, validate, group_id, group_size,
  agent_name, policy_version_min, policy_version_max,
  CASE WHEN is_agent THEN name END AS name,
  CASE WHEN NOT is_agent THEN 'running' WHEN status = 'error' THEN 'error' ELSE 'ok' END AS state,
  CASE WHEN is_agent THEN error_type END AS error_type,
  CASE WHEN is_agent THEN error_message END AS error_message,
  start_time, start_ns,
  CASE WHEN is_agent THEN duration_ns END AS duration_ns,
  scores
FROM (
  SELECT
    *,
    coalesce(kind = 'AGENT', false) AS is_agent,
    row_number() OVER (
      PARTITION BY trace_id ORDER BY coalesce(kind = 'AGENT', false) DESC, start_ns, span_id
    ) AS place
  FROM spans
  WHERE validate IS NOT NULL AND coalesce(score_by, '') <> 'identity'
    AND trace_id IN (SELECT trace_id FROM unended_traces)
) AS unended
WHERE place = 1
