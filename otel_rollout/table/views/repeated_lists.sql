-- Start times of spans that have several rows, of each trace that has some, as a list.
SELECT trace_id AS repeated_trace, array_agg(start_ns ORDER BY start_ns) AS repeated FROM repeated_spans GROUP BY trace_id
