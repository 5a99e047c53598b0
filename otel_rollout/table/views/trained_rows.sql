-- Each trajectory with its calls, its reward, and what the trainer says of it and of its step. In a run without the
-- trainer's lag, the lag is the step less the version of the weights that made the first tokens. A trajectory that ended
-- well is passed over if the trainer named others of its step.
SELECT
  *, CASE WHEN abs(reward) < 1e150 THEN reward END AS finite_reward,
  CASE
    WHEN left_out IS NOT NULL THEN left_out
    WHEN NOT coalesce(is_named, false) AND passes_over AND state = 'ok' AND NOT validate
      THEN 'the trainer did not name it'
  END AS reason,
  CASE
    WHEN has_trainers_lag THEN policy_lag
    WHEN NOT validate THEN CAST(step - policy_version_min AS DOUBLE)
  END AS lag,
  CASE
    WHEN has_trainers_lag THEN CASE WHEN policy_lag IS NOT NULL THEN 'trainer' END
    WHEN NOT validate AND step IS NOT NULL AND policy_version_min IS NOT NULL THEN 'step'
  END AS lag_source
FROM counted_rows LEFT JOIN outcomes ON trace_id = outcome_trace LEFT JOIN rewards ON trace_id = reward_trace
  LEFT JOIN trainer_steps
    ON (run_id IS NOT DISTINCT FROM of_run_id) AND (project IS NOT DISTINCT FROM of_project)
      AND (experiment IS NOT DISTINCT FROM of_experiment) AND (validate IS NOT DISTINCT FROM of_validate)
      AND (step IS NOT DISTINCT FROM of_step) AND (step_text IS NOT DISTINCT FROM of_step_text)
