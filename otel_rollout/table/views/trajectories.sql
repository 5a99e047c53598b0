-- Each trajectory: identity, state, duration, counts, reward and broken prefixes.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, rollout_text, validate, path, group_path,
  group_id, group_size, agent_name,
  policy_version_min, policy_version_max, name, state, error_type, error_message, start_time, seconds, turns,
  tool_calls, tool_errors, tokens_in, tokens_out, tokens_cached, reward, reward_label, broken_turns
FROM counted_rows LEFT JOIN rewards ON trace_id = reward_trace
