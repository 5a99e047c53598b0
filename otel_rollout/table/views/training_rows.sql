-- What training made of each trajectory, with its reward, by the scores that base/training_scores.py names. In a run
-- without the trainer's lag, the lag is the step less the version of the weights that made the first tokens. A trajectory
-- that ended well is passed over if the trainer named others of its step.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, validate, state, group_path,
  CASE WHEN abs(reward) < 1e150 THEN reward END AS reward, coalesce(has_outcome, false) AS has_outcome, trained,
  CASE
    WHEN left_out IS NOT NULL THEN left_out
    WHEN NOT coalesce(is_named, false) AND passes_over AND state = 'ok' AND NOT validate
      THEN 'the trainer did not name it'
  END AS reason,
  trained_step, trained_tokens, advantage, return_value, trained_reward, kl_penalty, reward_difference,
  CASE
    WHEN has_trainers_lag THEN policy_lag
    WHEN NOT validate THEN CAST(
      step - least(coalesce(policy_version_min, call_version_min), coalesce(call_version_min, policy_version_min))
    AS DOUBLE)
  END AS lag,
  CASE
    WHEN has_trainers_lag THEN CASE WHEN policy_lag IS NOT NULL THEN 'trainer' END
    WHEN NOT validate AND step IS NOT NULL AND coalesce(policy_version_min, call_version_min) IS NOT NULL THEN 'step'
  END AS lag_source,
  mismatch, mismatch_mean, mismatch_share, mismatch_token, mismatch_turn, importance_ratio, not_finite
FROM roots LEFT JOIN call_figures ON trace_id = call_trace LEFT JOIN outcomes ON trace_id = outcome_trace
  LEFT JOIN rewards ON trace_id = reward_trace
  LEFT JOIN trainer_steps
    ON (run_id IS NOT DISTINCT FROM of_run_id) AND (project IS NOT DISTINCT FROM of_project)
      AND (experiment IS NOT DISTINCT FROM of_experiment) AND (validate IS NOT DISTINCT FROM of_validate)
      AND (step IS NOT DISTINCT FROM of_step) AND (step_text IS NOT DISTINCT FROM of_step_text)
