-- Each request in an inference engine: its span has no kind, and its engine phases are spans below it. The first token
-- ends prefill and begins decode. Times are null for a request whose span does not tell them.
WITH told AS (
  SELECT
    trace_id, parent_span_id AS request_id,
    sum(duration_ns) FILTER (WHERE name = 'queue') / 1e9 AS queue_seconds,
    sum(duration_ns) FILTER (WHERE name = 'prefill') / 1e9 AS prefill_seconds,
    sum(duration_ns) FILTER (WHERE name = 'decode') / 1e9 AS decode_seconds,
    min(start_ns) FILTER (WHERE name = 'decode') AS first_token_ns
  FROM spans
  WHERE name IN ('queue', 'prefill', 'decode') AND parent_span_id IS NOT NULL
  GROUP BY trace_id, parent_span_id
)
SELECT
  request.trace_id, request.span_id, request.parent_span_id, request.run_id, request.project, request.experiment,
  request.step, request.sample_index, request.rollout_n, request.validate, request.scope, request.start_time,
  request.start_ns, request.duration_ns / 1e9 AS seconds, request.status, told.queue_seconds, told.prefill_seconds,
  told.decode_seconds, (told.first_token_ns - request.start_ns) / 1e9 AS first_token_seconds, request.service
FROM spans AS request LEFT JOIN told
  ON request.trace_id = told.trace_id AND request.span_id = told.request_id
WHERE request.name = 'llm_request' AND request.kind IS NULL
