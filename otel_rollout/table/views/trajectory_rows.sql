-- Each trajectory with all its figures: the root, and what each part says of its trace. Other views join the roots with the
-- parts that they need alone: an engine would plan all parts for each query.
SELECT * EXCLUDE (
  unparsed_trace, reward_trace, outcome_trace, score_trace, phase_trace, request_trace, break_trace,
  tool_trace, reply_trace, context_trace, sign_trace
)
FROM counted_rows
  LEFT JOIN unparsed_calls ON trace_id = unparsed_trace
  LEFT JOIN rewards ON trace_id = reward_trace
  LEFT JOIN outcomes ON trace_id = outcome_trace
  LEFT JOIN score_lists ON trace_id = score_trace
  LEFT JOIN phase_figures ON trace_id = phase_trace
  LEFT JOIN request_figures ON trace_id = request_trace
  LEFT JOIN break_figures ON trace_id = break_trace
  LEFT JOIN tool_lists ON trace_id = tool_trace
  LEFT JOIN reply_signs ON trace_id = reply_trace
  LEFT JOIN context_signs ON trace_id = context_trace
  LEFT JOIN span_signs ON trace_id = sign_trace
