-- What training made of each trajectory, by the scores that base/training_scores.py names. Without a score of the
-- trainer, the lag is the step less the version of the weights that made the first tokens. A step, turn or number of
-- tokens that is no integer of 64 bits is null.
WITH outcomes AS (
  SELECT
    trace_id,
    max(value) FILTER (WHERE name = 'trained') AS trained,
    max(comment) FILTER (WHERE name = 'trained') AS reason,
    max(value) FILTER (WHERE name = 'trained_step') AS trained_step,
    max(value) FILTER (WHERE name = 'trained_tokens') AS trained_tokens,
    max(value) FILTER (WHERE name = 'advantage') AS advantage,
    max(value) FILTER (WHERE name = 'return') AS return_value,
    max(value) FILTER (WHERE name = 'trained_reward') AS trained_reward,
    max(value) FILTER (WHERE name = 'kl_penalty') AS kl_penalty,
    max(value) FILTER (WHERE name = 'policy_lag') AS policy_lag,
    max(value) FILTER (WHERE name = 'logprob_diff_max') AS mismatch,
    max(value) FILTER (WHERE name = 'logprob_diff_mean') AS mismatch_mean,
    max(value) FILTER (WHERE name = 'logprob_diff_share') AS mismatch_share,
    max(value) FILTER (WHERE name = 'logprob_diff_token') AS mismatch_token,
    max(value) FILTER (WHERE name = 'logprob_diff_turn') AS mismatch_turn,
    max(value) FILTER (WHERE name = 'importance_ratio') AS importance_ratio,
    max(value) FILTER (WHERE name = 'reward') AS reward,
    bool_or(name <> 'reward') AS has_outcome,
    max(name) FILTER (WHERE name <> 'reward' AND (value IS NULL OR isnan(value) OR abs(value) > 1e300)) AS not_finite
  FROM newest_scores
  WHERE name IN (
    'trained', 'trained_step', 'trained_tokens', 'advantage', 'return', 'trained_reward', 'kl_penalty',
    'policy_lag', 'logprob_diff_max', 'logprob_diff_mean', 'logprob_diff_share', 'logprob_diff_token',
    'logprob_diff_turn', 'importance_ratio', 'reward'
  )
  GROUP BY trace_id
)
SELECT
  root.trace_id, root.run_id, root.project, root.experiment, root.step, root.sample_index, root.rollout_n,
  root.validate, coalesce(outcomes.has_outcome, false) AS has_outcome, outcomes.trained <> 0 AS trained,
  CASE WHEN outcomes.trained = 0 THEN coalesce(nullif(outcomes.reason, ''), 'no reason given') END AS reason,
  CASE WHEN outcomes.trained_step = trunc(outcomes.trained_step) THEN TRY_CAST(outcomes.trained_step AS BIGINT) END
    AS trained_step,
  CASE WHEN outcomes.trained_tokens = trunc(outcomes.trained_tokens) THEN TRY_CAST(outcomes.trained_tokens AS BIGINT) END
    AS trained_tokens,
  outcomes.advantage, outcomes.return_value, outcomes.trained_reward, outcomes.kl_penalty,
  outcomes.trained_reward + coalesce(outcomes.kl_penalty, 0) - outcomes.reward AS reward_difference,
  CASE
    WHEN outcomes.policy_lag IS NOT NULL THEN outcomes.policy_lag
    WHEN NOT root.validate THEN CAST(root.step - root.policy_version_min AS DOUBLE)
  END AS lag,
  CASE
    WHEN outcomes.policy_lag IS NOT NULL THEN 'trainer'
    WHEN NOT root.validate AND root.step IS NOT NULL AND root.policy_version_min IS NOT NULL THEN 'step'
  END AS lag_source,
  outcomes.mismatch, outcomes.mismatch_mean, outcomes.mismatch_share,
  CASE WHEN outcomes.mismatch_token = trunc(outcomes.mismatch_token) THEN TRY_CAST(outcomes.mismatch_token AS BIGINT) END
    AS mismatch_token,
  CASE WHEN outcomes.mismatch_turn = trunc(outcomes.mismatch_turn) THEN TRY_CAST(outcomes.mismatch_turn AS BIGINT) END
    AS mismatch_turn,
  outcomes.importance_ratio, outcomes.not_finite
FROM roots AS root LEFT JOIN outcomes ON root.trace_id = outcomes.trace_id
