-- Each model call: the messages that are new in it, and the model's reply.
SELECT
  call.trace_id, call.span_id, call.parent_span_id, call.run_id, call.project, call.experiment, call.step,
  call.sample_index, call.rollout_n, call.validate, call.name, call.scope, call.model, call.start_time,
  call.start_ns, CASE WHEN call.start_time IS NOT NULL THEN call.duration_ns / 1e9 END AS seconds,
  call.status, call.error_type, call.error_message,
  CAST(coalesce(call.tokens_in, inner_tokens.tokens_in) AS BIGINT) AS tokens_in,
  CAST(coalesce(call.tokens_out, inner_tokens.tokens_out) AS BIGINT) AS tokens_out,
  CAST(coalesce(call.tokens_cached, inner_tokens.tokens_cached) AS BIGINT) AS tokens_cached, call.finish_reason, call.messages_system,
  call.messages_user, call.messages_assistant, call.messages_tool, call.turn_length, call.continues, call.shared,
  call.policy_version_min, call.policy_version_max, call.break_of, call.break_token, call.break_removed,
  call.break_added, call.break_kind, call.break_was, call.break_became, call.reply, call.input, call.output
FROM spans AS call LEFT JOIN inner_calls
  ON call.trace_id = inner_calls.trace_id AND call.span_id = inner_calls.span_id
  LEFT JOIN inner_tokens ON call.trace_id = inner_tokens.trace_id AND call.span_id = inner_tokens.span_id
WHERE call.kind = 'LLM' AND inner_calls.span_id IS NULL
