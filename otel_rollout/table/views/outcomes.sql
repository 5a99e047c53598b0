-- What the trainer's scores say of each trajectory that has some, as base/training_scores.py names them; and the number
-- that was recorded as its reward. A step, turn or number of tokens that is no integer of 64 bits is null.
SELECT
  outcome_trace, scored_reward, has_outcome, CASE trained WHEN 1 THEN true WHEN 0 THEN false END AS trained, is_named,
  CASE WHEN trained = 0 THEN coalesce(nullif(reason, ''), 'no reason given') END AS left_out,
  CASE WHEN trained_step = trunc(trained_step) THEN TRY_CAST(trained_step AS BIGINT) END AS trained_step,
  CASE WHEN trained_tokens = trunc(trained_tokens) THEN TRY_CAST(trained_tokens AS BIGINT) END AS trained_tokens,
  advantage, return_value, trained_reward, kl_penalty,
  CASE
    WHEN abs(scored_reward) < 1e150 AND abs(trained_reward + CASE WHEN has_penalty THEN kl_penalty ELSE 0 END) < 1e150
      THEN trained_reward + coalesce(kl_penalty, 0) - scored_reward
  END AS reward_difference,
  policy_lag, mismatch, mismatch_mean, mismatch_share,
  CASE WHEN mismatch_token = trunc(mismatch_token) THEN TRY_CAST(mismatch_token AS BIGINT) END AS mismatch_token,
  CASE WHEN mismatch_turn = trunc(mismatch_turn) THEN TRY_CAST(mismatch_turn AS BIGINT) END AS mismatch_turn,
  importance_ratio, not_finite
FROM (
  SELECT
    trace_id AS outcome_trace,
    max(value) FILTER (WHERE name = 'reward') AS scored_reward,
    bool_or(name <> 'reward') AS has_outcome,
    max(value) FILTER (WHERE name = 'trained') AS trained,
    bool_or(name = 'trained') AS is_named,
    max(comment) FILTER (WHERE name = 'trained') AS reason,
    max(value) FILTER (WHERE name = 'trained_step') AS trained_step,
    max(value) FILTER (WHERE name = 'trained_tokens') AS trained_tokens,
    max(value) FILTER (WHERE name = 'advantage') AS advantage,
    max(value) FILTER (WHERE name = 'return') AS return_value,
    max(value) FILTER (WHERE name = 'trained_reward') AS trained_reward,
    max(value) FILTER (WHERE name = 'kl_penalty') AS kl_penalty,
    bool_or(name = 'kl_penalty') AS has_penalty,
    max(value) FILTER (WHERE name = 'policy_lag') AS policy_lag,
    max(abs(value)) FILTER (WHERE name = 'logprob_diff_max') AS mismatch,
    max(abs(value)) FILTER (WHERE name = 'logprob_diff_mean') AS mismatch_mean,
    max(value) FILTER (WHERE name = 'logprob_diff_share' AND value BETWEEN 0 AND 1) AS mismatch_share,
    max(value) FILTER (WHERE name = 'logprob_diff_token') AS mismatch_token,
    max(value) FILTER (WHERE name = 'logprob_diff_turn') AS mismatch_turn,
    max(value) FILTER (WHERE name = 'importance_ratio') AS importance_ratio,
    max(name) FILTER (
      WHERE name <> 'reward' AND NOT abs(coalesce(value, TRY_CAST(label AS DOUBLE))) < 1e150
    ) AS not_finite
  FROM newest_scores
  WHERE name IN (
    'trained', 'trained_step', 'trained_tokens', 'advantage', 'return', 'trained_reward', 'kl_penalty', 'policy_lag',
    'logprob_diff_max', 'logprob_diff_mean', 'logprob_diff_share', 'logprob_diff_token', 'logprob_diff_turn',
    'importance_ratio', 'reward'
  )
  GROUP BY trace_id
) AS said
