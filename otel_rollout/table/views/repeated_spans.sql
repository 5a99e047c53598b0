-- Trace and start time of each span that has several rows. Other spans may begin in one nanosecond: the phases of an
-- engine's request do if one lasts no time, and so do spans of programs whose clock is coarse.
SELECT trace_id, start_ns
FROM recorded_spans
WHERE start_ns IN (SELECT start_ns FROM recorded_spans GROUP BY start_ns HAVING count(*) > 1)
GROUP BY start_ns, trace_id, span_id
HAVING count(*) > 1
