-- Model calls inside other model calls: the span of a client and the span of its engine are one call. A count of
-- tokens that the outer call lacks is the sum over the nearest calls inside it that have the count.
WITH RECURSIVE below AS (
  SELECT
    inside.trace_id, inside.span_id, inside.kind, inside.start_ns, inside.model, inside.finish_reason,
    outside.span_id AS outside_id, 1 AS depth, 0 AS calls_between,
    CASE WHEN inside.kind = 'LLM' AND outside.tokens_in IS NULL THEN inside.tokens_in END AS tokens_in,
    CASE WHEN inside.kind = 'LLM' AND outside.tokens_out IS NULL THEN inside.tokens_out END AS tokens_out,
    CASE WHEN inside.kind = 'LLM' AND outside.tokens_cached IS NULL THEN inside.tokens_cached END AS tokens_cached,
    outside.tokens_in IS NOT NULL OR (inside.kind = 'LLM' AND inside.tokens_in IS NOT NULL) AS has_in,
    outside.tokens_out IS NOT NULL OR (inside.kind = 'LLM' AND inside.tokens_out IS NOT NULL) AS has_out,
    outside.tokens_cached IS NOT NULL OR (inside.kind = 'LLM' AND inside.tokens_cached IS NOT NULL) AS has_cached
  FROM spans AS inside JOIN spans AS outside
    ON inside.parent_span_id = outside.span_id AND inside.trace_id = outside.trace_id
  WHERE outside.kind = 'LLM'
  UNION ALL
  SELECT
    inside.trace_id, inside.span_id, inside.kind, inside.start_ns, inside.model, inside.finish_reason,
    below.outside_id, below.depth + 1 AS depth,
    below.calls_between + CASE WHEN below.kind = 'LLM' THEN 1 ELSE 0 END AS calls_between,
    CASE WHEN inside.kind = 'LLM' AND NOT below.has_in THEN inside.tokens_in END AS tokens_in,
    CASE WHEN inside.kind = 'LLM' AND NOT below.has_out THEN inside.tokens_out END AS tokens_out,
    CASE WHEN inside.kind = 'LLM' AND NOT below.has_cached THEN inside.tokens_cached END AS tokens_cached,
    below.has_in OR (inside.kind = 'LLM' AND inside.tokens_in IS NOT NULL) AS has_in,
    below.has_out OR (inside.kind = 'LLM' AND inside.tokens_out IS NOT NULL) AS has_out,
    below.has_cached OR (inside.kind = 'LLM' AND inside.tokens_cached IS NOT NULL) AS has_cached
  FROM spans AS inside JOIN below
    ON inside.parent_span_id = below.span_id AND inside.trace_id = below.trace_id
  WHERE below.depth < 32
)
SELECT
  trace_id, span_id, outside_id, calls_between, start_ns, model, finish_reason, tokens_in, tokens_out, tokens_cached
FROM below
WHERE kind = 'LLM'
