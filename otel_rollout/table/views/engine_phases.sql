-- What requests in an inference engine did: spans of this package below them. An engine may have spans of these names of
-- its own.
SELECT trace_id, span_id, parent_span_id AS request_id, name, duration_ns
FROM spans
WHERE name IN ('queue', 'prefill', 'decode') AND kind IS NULL AND scope = 'otel_rollout' AND parent_span_id IS NOT NULL
