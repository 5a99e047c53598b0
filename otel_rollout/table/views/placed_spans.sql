-- The step that each row of a trajectory, or of a score by identity, names: texts in the order of the steps. Scores by
-- identity fit trajectories of one place and member. The group of a trajectory without a step has the name of one whose
-- step is the text '-'.
SELECT
  trace_id, step, coalesce(sample_index, trace_id) AS member,
  CASE WHEN validate IS NOT NULL THEN
    lpad(coalesce(CAST(step AS VARCHAR), step_text, same_name), 20, '0')
      || '/' || coalesce(project, '') || '/' || coalesce(experiment, '')
  END AS place
FROM recorded_spans CROSS JOIN (
  SELECT max(step_text) AS same_name FROM recorded_spans WHERE step IS NULL AND step_text = '-'
) AS without_step
