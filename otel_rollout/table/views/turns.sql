-- Each model call: the messages that are new in it, and the model's reply.
SELECT
  trace_id, span_id, parent_span_id, run_id, project, experiment, step, sample_index, rollout_n, validate, name, scope,
  model, start_time, start_ns, CASE WHEN start_time IS NOT NULL THEN duration_ns / 1e9 END AS seconds, status,
  error_type, error_message, tokens_in, tokens_out, tokens_cached, finish_reason, messages_system, messages_user,
  messages_assistant, messages_tool, turn_length, continues, shared, policy_version_min, policy_version_max, break_of,
  break_token, break_removed, break_added, break_kind, break_was, break_became, reply, input, output
FROM counted_calls
WHERE kind = 'LLM'
