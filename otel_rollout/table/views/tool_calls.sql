-- Each call of a tool, with arguments and result.
SELECT
  trace_id, span_id, parent_span_id, run_id, project, experiment, step, sample_index, rollout_n, validate, name,
  tool_name, start_time, start_ns, CASE WHEN start_time IS NOT NULL THEN duration_ns / 1e9 END AS seconds,
  status, error_type, error_message,
  input AS arguments, output AS result
FROM spans
WHERE kind = 'TOOL'
