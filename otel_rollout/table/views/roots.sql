-- The span that stands for each trajectory: the root; without it, of the spans whose parent is not recorded, the one that
-- begins a trajectory, has ended and has no sibling of another kind (its parent is in another system); else the earliest
-- that begins none inside. Then the trajectory runs, since its first span.
SELECT
  trace_id, span_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, rollout_text, validate,
  group_path, path, group_id, group_size, agent_name, policy_version_min, policy_version_max, name,
  CASE WHEN status = 'error' THEN 'error' ELSE 'ok' END AS state,
  error_type, error_message, start_time, start_ns, duration_ns, scores AS repeated_scores
FROM spans
WHERE is_root AND validate IS NOT NULL
UNION ALL
SELECT
  trace_id, span_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, rollout_text, validate,
  group_path, path, group_id, group_size, agent_name, policy_version_min, policy_version_max,
  CASE WHEN is_agent OR parent_span_id IS NULL THEN name END AS name,
  CASE WHEN NOT is_agent THEN 'running' WHEN status = 'error' THEN 'error' ELSE 'ok' END AS state,
  CASE WHEN is_agent THEN error_type END AS error_type,
  CASE WHEN is_agent THEN error_message END AS error_message,
  CASE WHEN is_agent THEN start_time ELSE first_time END AS start_time,
  CASE WHEN is_agent THEN start_ns ELSE first_ns END AS start_ns,
  CASE WHEN is_agent THEN duration_ns END AS duration_ns,
  scores AS repeated_scores
FROM (
  SELECT
    *,
    is_beginning AND NOT has_other_sibling AND duration_ns IS NOT NULL AS is_agent,
    row_number() OVER (
      PARTITION BY trace_id
      ORDER BY is_below, is_beginning AND has_other_sibling, start_ns, is_beginning DESC, span_id
    ) AS place
  FROM (
    SELECT
      inside.*, around.span_id IS NOT NULL AS is_below,
      min(inside.start_time) OVER (PARTITION BY inside.trace_id) AS first_time,
      min(inside.start_ns) OVER (PARTITION BY inside.trace_id) AS first_ns,
      bool_or(NOT inside.is_beginning) OVER (PARTITION BY inside.trace_id, inside.parent_span_id) AS has_other_sibling
    FROM (
      SELECT *, coalesce(kind = 'AGENT' AND attributes LIKE '%"rollout.begins_trajectory":true%', false) AS is_beginning
      FROM spans
    ) AS inside LEFT JOIN (
      SELECT trace_id, span_id FROM spans
      WHERE validate IS NOT NULL AND trace_id IN (SELECT trace_id FROM unended_traces)
    ) AS around ON inside.trace_id = around.trace_id AND inside.parent_span_id = around.span_id
    WHERE inside.validate IS NOT NULL AND coalesce(inside.score_by, '') <> 'identity'
      AND inside.trace_id IN (SELECT trace_id FROM unended_traces)
  ) AS of_unended
) AS unended
WHERE place = 1
