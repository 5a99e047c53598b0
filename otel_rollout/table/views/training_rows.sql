-- What training made of each trajectory, with its reward, by the scores that base/training_scores.py names.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, validate, state, group_path,
  finite_reward AS reward, coalesce(has_outcome, false) AS has_outcome, trained, reason, trained_step, trained_tokens,
  advantage, return_value, trained_reward, kl_penalty, reward_difference, lag, lag_source, mismatch, mismatch_mean,
  mismatch_share, mismatch_token, mismatch_turn, importance_ratio, not_finite
FROM trained_rows
