-- What the engine's requests of each trace with a request took, in seconds summed over them, the first token as a mean;
-- and the model calls that have a request.
WITH RECURSIVE around AS (
  SELECT trace_id, parent_span_id AS span_id FROM engine_requests WHERE parent_span_id IS NOT NULL
  UNION
  SELECT outside.trace_id, outside.parent_span_id AS span_id
  FROM around JOIN spans AS outside ON around.trace_id = outside.trace_id AND around.span_id = outside.span_id
  WHERE outside.parent_span_id IS NOT NULL
), called AS (
  SELECT call.trace_id, count(*) AS calls_with_request
  FROM around JOIN counted_calls AS call ON around.trace_id = call.trace_id AND around.span_id = call.span_id
  WHERE call.kind = 'LLM'
  GROUP BY call.trace_id
), summed AS (
  SELECT
    trace_id, count(*) AS requests, sum(queue_seconds) AS queue_seconds, sum(prefill_seconds) AS prefill_seconds,
    sum(decode_seconds) AS decode_seconds, avg(first_token_seconds) AS first_token_seconds
  FROM engine_requests
  GROUP BY trace_id
)
SELECT
  summed.trace_id AS request_trace, summed.requests, called.calls_with_request, summed.queue_seconds,
  summed.prefill_seconds, summed.decode_seconds, summed.first_token_seconds
FROM summed LEFT JOIN called ON summed.trace_id = called.trace_id
