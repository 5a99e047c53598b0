-- What training made of each trajectory, by the scores that base/training_scores.py names. In a run without the
-- trainer's lag, the lag is the step less the version of the weights that made the first tokens. A trajectory that
-- ended well is passed over if the trainer named others of its step: in the newest step that it named, scores may
-- follow while any trajectory of the run is running. A step, turn or number of tokens that is no integer of 64 bits
-- is null.
WITH outcomes AS (
  SELECT
    trace_id,
    max(value) FILTER (WHERE name = 'trained') AS trained,
    bool_or(name = 'trained') AS is_named,
    max(comment) FILTER (WHERE name = 'trained') AS reason,
    max(value) FILTER (WHERE name = 'trained_step') AS trained_step,
    max(value) FILTER (WHERE name = 'trained_tokens') AS trained_tokens,
    max(value) FILTER (WHERE name = 'advantage') AS advantage,
    max(value) FILTER (WHERE name = 'return') AS return_value,
    max(value) FILTER (WHERE name = 'trained_reward') AS trained_reward,
    max(value) FILTER (WHERE name = 'kl_penalty') AS kl_penalty,
    max(value) FILTER (WHERE name = 'policy_lag') AS policy_lag,
    max(abs(value)) FILTER (WHERE name = 'logprob_diff_max') AS mismatch,
    max(abs(value)) FILTER (WHERE name = 'logprob_diff_mean') AS mismatch_mean,
    max(value) FILTER (WHERE name = 'logprob_diff_share' AND value BETWEEN 0 AND 1) AS mismatch_share,
    max(value) FILTER (WHERE name = 'logprob_diff_token') AS mismatch_token,
    max(value) FILTER (WHERE name = 'logprob_diff_turn') AS mismatch_turn,
    max(value) FILTER (WHERE name = 'importance_ratio') AS importance_ratio,
    max(value) FILTER (WHERE name = 'reward') AS reward,
    bool_or(name <> 'reward') AS has_outcome,
    max(name) FILTER (WHERE name <> 'reward' AND (
      isnan(value) OR abs(value) >= 1e150 OR (value IS NULL AND lower(label) IN ('nan', 'inf', '-inf'))
    )) AS not_finite
  FROM newest_scores
  WHERE name IN (
    'trained', 'trained_step', 'trained_tokens', 'advantage', 'return', 'trained_reward', 'kl_penalty',
    'policy_lag', 'logprob_diff_max', 'logprob_diff_mean', 'logprob_diff_share', 'logprob_diff_token',
    'logprob_diff_turn', 'importance_ratio', 'reward'
  )
  GROUP BY trace_id
), joined AS (
  SELECT
    root.trace_id, root.run_id, root.project, root.experiment, root.step, root.sample_index, root.rollout_n,
    root.validate, root.state, root.policy_version_min, outcomes.trained, outcomes.reason, outcomes.trained_step,
    outcomes.trained_tokens, outcomes.advantage, outcomes.return_value, outcomes.trained_reward,
    outcomes.kl_penalty, outcomes.policy_lag, outcomes.mismatch, outcomes.mismatch_mean, outcomes.mismatch_share,
    outcomes.mismatch_token, outcomes.mismatch_turn, outcomes.importance_ratio, outcomes.reward,
    outcomes.not_finite, coalesce(outcomes.has_outcome, false) AS has_outcome,
    coalesce(outcomes.is_named, false) AS is_named,
    count(outcomes.policy_lag) OVER of_run > 0 AS has_trainers_lag,
    bool_or(coalesce(outcomes.is_named, false)) OVER of_step AS has_named_sibling,
    bool_or(root.state = 'running') OVER of_run
      AND root.step = max(CASE WHEN outcomes.is_named THEN root.step END) OVER of_run AS may_follow
  FROM roots AS root LEFT JOIN outcomes ON root.trace_id = outcomes.trace_id
  WINDOW
    of_run AS (PARTITION BY root.project, root.experiment, root.run_id),
    of_step AS (PARTITION BY root.project, root.experiment, root.run_id, root.validate, root.step, root.step_text)
)
SELECT
  trace_id, run_id, project, experiment, step, sample_index, rollout_n, validate, has_outcome,
  CASE trained WHEN 1 THEN true WHEN 0 THEN false END AS trained,
  CASE
    WHEN trained = 0 THEN coalesce(nullif(reason, ''), 'no reason given')
    WHEN NOT is_named AND has_named_sibling AND state = 'ok' AND NOT validate AND NOT coalesce(may_follow, false)
      THEN 'the trainer did not name it'
  END AS reason,
  CASE WHEN trained_step = trunc(trained_step) THEN TRY_CAST(trained_step AS BIGINT) END AS trained_step,
  CASE WHEN trained_tokens = trunc(trained_tokens) THEN TRY_CAST(trained_tokens AS BIGINT) END AS trained_tokens,
  advantage, return_value, trained_reward, kl_penalty, trained_reward + coalesce(kl_penalty, 0) - reward AS reward_difference,
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
