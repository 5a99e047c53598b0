-- Each trace, with the row of its trajectory if it has one: what compaction stores.
SELECT * EXCLUDE (repeated_trace)
FROM trace_names LEFT JOIN repeated_lists ON named_trace = repeated_trace
  LEFT JOIN trajectory_rows ON named_trace = trace_id
