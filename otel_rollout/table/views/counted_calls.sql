-- Each model call and tool call that is not inside a model call. A count of tokens that a call lacks is that of the calls
-- inside it. Reasons of a reply that was cut are those of CUT_BY_LENGTH in otlp/model_calls.py.
SELECT
  call.* REPLACE (
    CAST(coalesce(call.tokens_in, inner_tokens.tokens_in) AS BIGINT) AS tokens_in,
    CAST(coalesce(call.tokens_out, inner_tokens.tokens_out) AS BIGINT) AS tokens_out,
    CAST(coalesce(call.tokens_cached, inner_tokens.tokens_cached) AS BIGINT) AS tokens_cached
  ),
  concat(', ', lower(call.finish_reason), ', ') LIKE '%, length, %'
    OR concat(', ', lower(call.finish_reason), ', ') LIKE '%, max_output_tokens, %'
    OR concat(', ', lower(call.finish_reason), ', ') LIKE '%, max_tokens, %'
    OR concat(', ', lower(call.finish_reason), ', ') LIKE '%, model_length, %' AS reached_limit
FROM spans AS call LEFT JOIN inner_calls
  ON call.trace_id = inner_calls.trace_id AND call.span_id = inner_calls.span_id
  LEFT JOIN inner_tokens ON call.trace_id = inner_tokens.trace_id AND call.span_id = inner_tokens.span_id
WHERE call.kind IN ('LLM', 'TOOL') AND inner_calls.span_id IS NULL
