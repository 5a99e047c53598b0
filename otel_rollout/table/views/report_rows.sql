-- Each trajectory with the figures that a report sums up. A reward that is NaN or infinite is null; `has_no_reward`: none
-- was given. The expressions are those of the views trajectories, finite_rewards, phases, engine_time and training: an
-- engine would join these views by the trace, each time that it reads the rows.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, validate, path, group_path, state,
  error_type, start_time, CASE WHEN start_time IS NOT NULL THEN duration_ns / 1e9 END AS seconds,
  coalesce(turns, 0) AS turns, coalesce(tool_calls, 0) AS tool_calls,
  CASE WHEN tool_calls > 0 THEN tool_errors ELSE 0 END AS tool_errors,
  tokens_in, tokens_out, CASE WHEN abs(reward) < 1e150 THEN reward END AS reward,
  coalesce(isnan(reward) OR abs(reward) >= 1e150, false)
    OR (reward IS NULL AND coalesce(lower(reward_label) IN ('nan', 'inf', '-inf'), false)) AS has_odd_reward,
  reward IS NULL AND reward_label IS NULL AS has_no_reward,
  CASE WHEN NOT validate THEN
    step - least(coalesce(policy_version_min, call_version_min), coalesce(call_version_min, policy_version_min))
  END AS policy_lag,
  greatest(coalesce(policy_version_max, call_version_max), coalesce(call_version_max, policy_version_max))
    > least(coalesce(policy_version_min, call_version_min), coalesce(call_version_min, policy_version_min))
    AS has_several_policies,
  CASE WHEN start_time IS NOT NULL THEN coalesce(generate_ns, 0) / 1e9 END AS generate_seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(tool_ns, 0) / 1e9 END AS tool_seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(reward_ns, 0) / 1e9 END AS reward_seconds,
  CASE
    WHEN start_time IS NOT NULL AND duration_ns IS NOT NULL
      THEN (greatest(duration_ns, coalesce(last_ns - start_ns, 0)) - coalesce(inside_ns, 0)) / 1e9
  END AS waiting_seconds,
  coalesce(replies_ended, 0) AS replies_ended, coalesce(truncated, 0) AS truncated, coalesce(unparsed, 0) AS unparsed,
  coalesce(has_outcome, false) AS has_outcome, trained,
  CASE
    WHEN left_out IS NOT NULL THEN left_out
    WHEN NOT coalesce(is_named, false) AND passes_over AND state = 'ok' AND NOT validate
      THEN 'the trainer did not name it'
  END AS reason,
  trained_tokens, advantage, trained_reward, reward_difference,
  CASE
    WHEN has_trainers_lag THEN policy_lag
    WHEN NOT validate THEN CAST(
      step - least(coalesce(policy_version_min, call_version_min), coalesce(call_version_min, policy_version_min))
    AS DOUBLE)
  END AS trainer_lag,
  CASE
    WHEN has_trainers_lag THEN CASE WHEN policy_lag IS NOT NULL THEN 'trainer' END
    WHEN NOT validate AND step IS NOT NULL AND coalesce(policy_version_min, call_version_min) IS NOT NULL THEN 'step'
  END AS lag_source,
  mismatch, mismatch_mean, mismatch_turn, importance_ratio, not_finite, requests,
  CASE WHEN requests IS NOT NULL THEN coalesce(turns, 0) - coalesce(calls_with_request, 0) END AS calls_without_request,
  queue_seconds, prefill_seconds, decode_seconds, first_token_seconds
FROM roots LEFT JOIN call_figures ON trace_id = call_trace LEFT JOIN unparsed_calls ON trace_id = unparsed_trace
  LEFT JOIN rewards ON trace_id = reward_trace LEFT JOIN outcomes ON trace_id = outcome_trace
  LEFT JOIN phase_figures ON trace_id = phase_trace LEFT JOIN request_figures ON trace_id = request_trace
  LEFT JOIN trainer_steps
    ON (run_id IS NOT DISTINCT FROM of_run_id) AND (project IS NOT DISTINCT FROM of_project)
      AND (experiment IS NOT DISTINCT FROM of_experiment) AND (validate IS NOT DISTINCT FROM of_validate)
      AND (step IS NOT DISTINCT FROM of_step) AND (step_text IS NOT DISTINCT FROM of_step_text)
