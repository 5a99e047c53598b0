-- Model calls inside other model calls: the span of a client and the span of its engine are one call.
WITH RECURSIVE below AS (
  SELECT inside.trace_id, inside.span_id, inside.kind, 1 AS depth
  FROM spans AS inside JOIN spans AS outside
    ON inside.parent_span_id = outside.span_id AND inside.trace_id = outside.trace_id
  WHERE outside.kind = 'LLM'
  UNION ALL
  SELECT inside.trace_id, inside.span_id, inside.kind, below.depth + 1 AS depth
  FROM spans AS inside JOIN below
    ON inside.parent_span_id = below.span_id AND inside.trace_id = below.trace_id
  WHERE below.depth < 32
)
SELECT DISTINCT trace_id, span_id FROM below WHERE kind = 'LLM'
