-- What the spans of each trace name: the run, and the beginning of a group's name, by which scores find trajectories.
SELECT DISTINCT
  trace_id, coalesce(run_id, '') AS run_id, coalesce(project, '') AS project, coalesce(experiment, '') AS experiment, step,
  CASE WHEN validate THEN 'validation/' ELSE '' END || coalesce(CAST(step AS VARCHAR), step_text) AS beginning,
  validate IS NOT NULL AND coalesce(score_by, '') <> 'identity' AS may_be_trajectory
FROM recorded_spans
