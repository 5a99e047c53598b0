-- What a model call does not say itself, and calls inside it do: the tokens, and of the last of the nearest calls the model,
-- and why its reply ended.
SELECT
  trace_id, outside_id AS span_id, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out,
  sum(tokens_cached) AS tokens_cached,
  (array_agg(model ORDER BY calls_between, start_ns DESC, span_id) FILTER (WHERE model IS NOT NULL))[1] AS model,
  (array_agg(finish_reason ORDER BY calls_between, start_ns DESC, span_id) FILTER (WHERE finish_reason IS NOT NULL))[1]
    AS finish_reason
FROM inner_calls
GROUP BY trace_id, outside_id
