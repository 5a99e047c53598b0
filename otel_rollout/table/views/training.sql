-- What training made of each trajectory, by the scores that base/training_scores.py names. In a run without the
-- trainer's lag, the lag is the step less the version of the weights that made the first tokens. A trajectory that
-- ended well is passed over if the trainer named others of its step: in the newest step that it named, scores may
-- follow while any trajectory of the run is running. A step, turn or number of tokens that is no integer of 64 bits
-- is null.
WITH joined AS (
  SELECT
    *,
    count(policy_lag) OVER of_run > 0 AS has_trainers_lag,
    bool_or(coalesce(is_named, false)) OVER of_step AS has_named_sibling,
    bool_or(state = 'running') OVER of_run
      AND step = max(CASE WHEN is_named THEN step END) OVER of_run AS may_follow
  FROM roots LEFT JOIN outcomes ON trace_id = outcome_trace
  WINDOW
    of_run AS (PARTITION BY project, experiment, run_id),
    of_step AS (PARTITION BY project, experiment, run_id, validate, step, step_text)
)
SELECT
  trace_id, run_id, project, experiment, step, sample_index, rollout_n, validate,
  coalesce(has_outcome, false) AS has_outcome,
  CASE trained WHEN 1 THEN true WHEN 0 THEN false END AS trained,
  CASE
    WHEN trained = 0 THEN coalesce(nullif(reason, ''), 'no reason given')
    WHEN NOT coalesce(is_named, false) AND has_named_sibling AND state = 'ok' AND NOT validate
      AND NOT coalesce(may_follow, false)
      THEN 'the trainer did not name it'
  END AS reason,
  CASE WHEN trained_step = trunc(trained_step) THEN TRY_CAST(trained_step AS BIGINT) END AS trained_step,
  CASE WHEN trained_tokens = trunc(trained_tokens) THEN TRY_CAST(trained_tokens AS BIGINT) END AS trained_tokens,
  advantage, return_value, trained_reward, kl_penalty,
  trained_reward + coalesce(kl_penalty, 0) - scored_reward AS reward_difference,
  CASE
    WHEN has_trainers_lag THEN policy_lag
    WHEN NOT validate THEN CAST(step - policy_version_min AS DOUBLE)
  END AS lag,
  CASE
    WHEN has_trainers_lag THEN CASE WHEN policy_lag IS NOT NULL THEN 'trainer' END
    WHEN NOT validate AND step IS NOT NULL AND policy_version_min IS NOT NULL THEN 'step'
  END AS lag_source,
  mismatch, mismatch_mean, mismatch_share,
  CASE WHEN mismatch_token = trunc(mismatch_token) THEN TRY_CAST(mismatch_token AS BIGINT) END AS mismatch_token,
  CASE WHEN mismatch_turn = trunc(mismatch_turn) THEN TRY_CAST(mismatch_turn AS BIGINT) END AS mismatch_turn,
  importance_ratio, not_finite
FROM joined
