-- What requests in an inference engine did: spans below them that this package has marked. An engine may have spans of these
-- names of its own; MLflow keeps no scope.
SELECT trace_id, span_id, parent_span_id AS request_id, name, duration_ns
FROM spans
WHERE name IN ('queue', 'prefill', 'decode') AND kind IS NULL AND attributes LIKE '%"rollout.engine.phase":%'
  AND parent_span_id IS NOT NULL
