-- Each score by identity that belongs to no trajectory: none fits it yet, or several do.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, rollout_text,
  coalesce(validate, false) AS validate, path, group_path, name, value, label, comment, CASE WHEN matches = 0 THEN 'unknown' ELSE 'ambiguous' END AS reason, matches, time_ns
FROM identity_scores
WHERE matches <> 1
