-- Model calls that were not compared with the turn before, because another process recorded it, and its line was read later
-- or on another machine. Resources differ in the segment, of which a process may have several.
SELECT trace_id, span_id
FROM (
  SELECT
    trace_id, span_id, continues, writer,
    lag(span_id) OVER (PARTITION BY trace_id, is_own ORDER BY start_ns, span_id) AS before_id,
    lag(writer) OVER (PARTITION BY trace_id, is_own ORDER BY start_ns, span_id) AS before_writer
  FROM call_signs
  WHERE trace_id IN (
    SELECT trace_id FROM spans WHERE kind = 'LLM' GROUP BY trace_id HAVING min(resource) < max(resource)
  )
) AS placed
WHERE before_id <> continues AND before_writer <> writer
