-- Each trajectory with what the checks of health find in its spans; null where nothing is known.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, validate, group_path, reply_bytes, own_calls,
  own_bytes, own_tokens, has_cut, has_empty, has_special,
  coalesce(has_changed, has_broken) OR coalesce(has_broken, has_changed) AS has_edited, has_retokenized, has_unreadable,
  is_right, is_wrong
FROM roots LEFT JOIN reply_signs ON trace_id = reply_trace LEFT JOIN context_signs ON trace_id = context_trace
  LEFT JOIN span_signs ON trace_id = sign_trace
