-- The tokens that a model call does not count itself, and calls inside it do.
SELECT
  trace_id, outside_id AS span_id, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out,
  sum(tokens_cached) AS tokens_cached
FROM inner_calls
GROUP BY trace_id, outside_id
