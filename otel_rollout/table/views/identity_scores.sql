-- Each score by identity with the number of trajectories that fit, and the trace of one. The score of a run that
-- has trajectories fits those of the run alone. If several fit, one that began after the score was given does not
-- count; compare otlp/score_identity.py.
WITH given AS (
  SELECT given_by_identity.*, own.run_id IS NOT NULL AS has_own
  FROM given_by_identity LEFT JOIN known_runs AS own
    ON coalesce(given_by_identity.run_id, '') = own.run_id
), fitting AS (
  SELECT
    given.trace_id, given.span_id, count(*) AS matches, max(root.trace_id) AS trajectory,
    count(*) FILTER (WHERE root.start_ns <= given.time_ns) AS begun,
    max(root.trace_id) FILTER (WHERE root.start_ns <= given.time_ns) AS begun_trajectory
  FROM given JOIN roots AS root ON given.group_path = root.group_path AND given.sample_index = root.sample_index
  WHERE given.has_step AND (given.path = root.path OR given.is_of_any_rollout)
    AND coalesce(given.validate, false) = coalesce(root.validate, false)
    AND coalesce(given.project, '') = coalesce(root.project, '')
    AND coalesce(given.experiment, '') = coalesce(root.experiment, '')
    AND (NOT given.has_own OR coalesce(given.run_id, '') = coalesce(root.run_id, ''))
  GROUP BY given.trace_id, given.span_id
)
SELECT
  given_by_identity.*,
  CASE WHEN fitting.begun > 0 THEN fitting.begun ELSE coalesce(fitting.matches, 0) END AS matches,
  coalesce(fitting.begun_trajectory, fitting.trajectory) AS trajectory
FROM given_by_identity LEFT JOIN fitting
  ON given_by_identity.trace_id = fitting.trace_id AND given_by_identity.span_id = fitting.span_id
