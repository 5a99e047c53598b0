-- How the replies of each trace ended, if it has calls.
SELECT
  coalesce(call_trace, unparsed_trace) AS trace_id, coalesce(replies_ended, 0) AS replies_ended,
  coalesce(truncated, 0) AS truncated, coalesce(unparsed, 0) AS unparsed
FROM call_figures FULL JOIN unparsed_calls ON call_trace = unparsed_trace
