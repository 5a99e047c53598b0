-- Each trajectory with the figures that a report sums up. A number that is NaN, infinite or huge is null;
-- `has_no_reward`: none was given. Seconds are as in the views phases and engine_time: an engine would join these by
-- the trace, each time that it reads the rows.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, validate, path, group_path, state,
  error_type, start_time, turns, tool_calls, tool_calls_known, tool_errors, tokens_in, tokens_out,
  finite_reward AS reward,
  coalesce(NOT abs(coalesce(reward, TRY_CAST(reward_label AS DOUBLE))) < 1e150, false) AS has_odd_reward,
  reward IS NULL AND reward_label IS NULL AS has_no_reward,
  CASE WHEN NOT validate THEN step - policy_version_min END AS policy_lag,
  policy_version_max > policy_version_min AS has_several_policies,
  CASE
    WHEN start_time IS NOT NULL AND duration_ns IS NOT NULL
      THEN greatest(duration_ns, coalesce(last_ns - start_ns, 0)) / 1e9
  END AS seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(generate_ns, CASE WHEN untimed_calls IS NULL THEN 0 END) / 1e9 END
    AS generate_seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(tool_ns, CASE WHEN untimed_calls IS NULL THEN 0 END) / 1e9 END
    AS tool_seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(reward_ns, CASE WHEN untimed_calls IS NULL THEN 0 END) / 1e9 END
    AS reward_seconds,
  CASE
    WHEN start_time IS NOT NULL AND duration_ns IS NOT NULL AND untimed_calls IS NULL
      THEN (greatest(duration_ns, coalesce(last_ns - start_ns, 0)) - coalesce(inside_ns, 0)) / 1e9
  END AS waiting_seconds,
  coalesce(has_lost_calls, false) AS has_lost_calls,
  replies_ended, truncated, coalesce(unparsed, 0) AS unparsed, coalesce(has_outcome, false) AS has_outcome, trained,
  reason, trained_tokens, CASE WHEN abs(advantage) < 1e150 THEN advantage END AS advantage,
  CASE WHEN abs(trained_reward) < 1e150 THEN trained_reward END AS trained_reward, reward_difference,
  CASE WHEN abs(lag) < 1e150 THEN lag END AS trainer_lag, lag_source,
  CASE WHEN mismatch < 1e150 THEN mismatch END AS mismatch,
  CASE WHEN mismatch_mean < 1e150 THEN mismatch_mean END AS mismatch_mean, mismatch_turn,
  CASE WHEN abs(importance_ratio) < 1e150 THEN importance_ratio END AS importance_ratio, not_finite, requests,
  turns - coalesce(calls_with_request, 0) AS calls_without_request,
  queue_seconds, prefill_seconds, decode_seconds, first_token_seconds
FROM trained_rows LEFT JOIN unparsed_calls ON trace_id = unparsed_trace
  LEFT JOIN phase_figures ON trace_id = phase_trace LEFT JOIN request_figures ON trace_id = request_trace
