-- What training made of each trajectory, by the scores that base/training_scores.py names.
SELECT
  trace_id, run_id, project, experiment, step, sample_index, rollout_n, validate, has_outcome, trained, reason,
  trained_step, trained_tokens, advantage, return_value, trained_reward, kl_penalty, reward_difference, lag, lag_source,
  mismatch, mismatch_mean, mismatch_share, mismatch_token, mismatch_turn, importance_ratio, not_finite
FROM training_rows
