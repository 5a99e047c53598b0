-- Each trajectory with the figures that a report sums up. A reward that is NaN or infinite is null; `has_no_reward`: none was given.
SELECT
  listed.trace_id, listed.run_id, listed.project, listed.experiment, listed.step, listed.step_text, listed.sample_index,
  listed.rollout_n, listed.validate, listed.path, listed.group_path, listed.state, listed.error_type, listed.start_time,
  listed.seconds, listed.turns, listed.tool_calls, listed.tool_errors, listed.tokens_in, listed.tokens_out,
  listed.finite_reward AS reward, listed.has_odd_reward,
  listed.reward IS NULL AND listed.reward_label IS NULL AS has_no_reward,
  CASE WHEN NOT listed.validate THEN listed.step - listed.policy_version_min END AS policy_lag,
  listed.policy_version_max > listed.policy_version_min AS has_several_policies,
  phases.generate_seconds, phases.tool_seconds, phases.reward_seconds, phases.waiting_seconds,
  coalesce(replies.replies_ended, 0) AS replies_ended, coalesce(replies.truncated, 0) AS truncated,
  coalesce(replies.unparsed, 0) AS unparsed,
  training.has_outcome, training.trained, training.reason, training.trained_tokens, training.advantage,
  training.trained_reward, training.reward_difference, training.lag AS trainer_lag, training.lag_source,
  training.mismatch, training.mismatch_mean, training.mismatch_turn, training.importance_ratio, training.not_finite,
  requested.requests, requested.calls_without_request, requested.queue_seconds, requested.prefill_seconds,
  requested.decode_seconds, requested.first_token_seconds
FROM finite_rewards AS listed
  LEFT JOIN training ON listed.trace_id = training.trace_id
  LEFT JOIN phases ON listed.trace_id = phases.trace_id
  LEFT JOIN reply_figures AS replies ON listed.trace_id = replies.trace_id
  LEFT JOIN engine_time AS requested ON listed.trace_id = requested.trace_id
