-- Each trajectory: identity, state, duration, counts, reward and broken prefixes.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, rollout_text, validate, path, group_path,
  group_id, group_size, agent_name,
  least(coalesce(policy_version_min, call_version_min), coalesce(call_version_min, policy_version_min))
    AS policy_version_min,
  greatest(coalesce(policy_version_max, call_version_max), coalesce(call_version_max, policy_version_max))
    AS policy_version_max,
  name, state, error_type, error_message, start_time,
  CASE WHEN start_time IS NOT NULL THEN duration_ns / 1e9 END AS seconds,
  coalesce(turns, 0) AS turns, coalesce(tool_calls, 0) AS tool_calls,
  CASE WHEN tool_calls > 0 THEN tool_errors ELSE 0 END AS tool_errors,
  tokens_in, tokens_out, tokens_cached, reward, reward_label, coalesce(broken_turns, 0) AS broken_turns
FROM roots LEFT JOIN call_figures ON trace_id = call_trace LEFT JOIN rewards ON trace_id = reward_trace
