-- Each span once: of several rows, that with the latest end, then the longest attributes, then the greater text.
-- Rows of one span have one start time, so that all other rows need no comparison.
SELECT recorded_spans.*
FROM recorded_spans LEFT JOIN repeated_starts ON recorded_spans.start_ns = repeated_starts.start_ns
WHERE repeated_starts.start_ns IS NULL
UNION ALL
SELECT * FROM (
  SELECT DISTINCT ON (trace_id, span_id) *
  FROM recorded_spans
  WHERE start_ns IN (SELECT start_ns FROM repeated_starts)
  ORDER BY trace_id, span_id, duration_ns DESC NULLS LAST, length(attributes) DESC NULLS LAST,
    attributes DESC
) AS newest
