-- The scores by identity. One without an index of the trajectory in its group may be any of the group's.
SELECT
  trace_id, span_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, rollout_text, validate,
  group_path, path,
  step IS NOT NULL OR step_text IS NOT NULL AS has_step, score_name AS name, score_value AS value, score_label AS label,
  score_comment AS comment, score_origin AS origin, start_ns AS time_ns,
  rollout_n IS NULL AND coalesce(attributes, '') NOT LIKE '%"rollout.rollout_n"%' AS is_of_any_rollout
FROM spans
WHERE score_by = 'identity' AND score_name IS NOT NULL
