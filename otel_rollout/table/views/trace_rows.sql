-- Each trace, with the row of its trajectory if it has one: what compaction stores.
SELECT * FROM trace_names LEFT JOIN trajectory_rows ON named_trace = trace_id
