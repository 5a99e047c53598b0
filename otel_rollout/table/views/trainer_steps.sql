-- What the trainer's scores say of each step as a whole. If they name some trajectories, the trainer passed over the
-- others: but in the newest step that they name, scores may follow while any trajectory of the run is running.
SELECT
  project AS of_project, experiment AS of_experiment, run_id AS of_run_id, validate AS of_validate, step AS of_step,
  step_text AS of_step_text, max(lags) OVER of_run > 0 AS has_trainers_lag,
  named > 0 AND NOT coalesce(
    bool_or(is_running) OVER of_run AND step = max(CASE WHEN named > 0 THEN step END) OVER of_run, false
  ) AS passes_over
FROM (
  SELECT
    project, experiment, run_id, validate, step, step_text, count(policy_lag) AS lags,
    count(*) FILTER (WHERE is_named) AS named, bool_or(state = 'running') AS is_running
  FROM roots LEFT JOIN outcomes ON trace_id = outcome_trace
  GROUP BY project, experiment, run_id, validate, step, step_text
) AS summed
WINDOW of_run AS (PARTITION BY project, experiment, run_id)
