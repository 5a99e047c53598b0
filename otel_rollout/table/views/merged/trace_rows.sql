-- Each trace, with the row of its trajectory if it has one.
SELECT * FROM merged_traces
