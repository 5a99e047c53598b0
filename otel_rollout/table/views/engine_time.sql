-- What the engine's requests of each trajectory with a request took, in seconds summed over them; the first token is
-- a mean. A model call without a request has none below it: its engine does not trace, or the request was aborted.
WITH RECURSIVE around AS (
  SELECT trace_id, parent_span_id AS span_id FROM engine_requests WHERE parent_span_id IS NOT NULL
  UNION
  SELECT outside.trace_id, outside.parent_span_id AS span_id
  FROM around JOIN spans AS outside ON around.trace_id = outside.trace_id AND around.span_id = outside.span_id
  WHERE outside.parent_span_id IS NOT NULL
), called AS (
  SELECT turns.trace_id, count(*) AS calls
  FROM around JOIN turns ON around.trace_id = turns.trace_id AND around.span_id = turns.span_id
  GROUP BY turns.trace_id
), summed AS (
  SELECT
    trace_id, count(*) AS requests, sum(queue_seconds) AS queue_seconds,
    sum(prefill_seconds) AS prefill_seconds, sum(decode_seconds) AS decode_seconds,
    avg(first_token_seconds) AS first_token_seconds
  FROM engine_requests
  GROUP BY trace_id
)
SELECT
  listed.trace_id, listed.run_id, listed.project, listed.experiment, listed.step, listed.sample_index,
  listed.rollout_n, listed.validate, summed.requests,
  listed.turns - coalesce(called.calls, 0) AS calls_without_request, summed.queue_seconds, summed.prefill_seconds,
  summed.decode_seconds, summed.first_token_seconds
FROM summed JOIN trajectories AS listed ON summed.trace_id = listed.trace_id
  LEFT JOIN called ON summed.trace_id = called.trace_id
