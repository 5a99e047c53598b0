-- Each model call and tool call that is not inside a model call. A count of tokens that a call lacks, its model and the end
-- of its reply are those of the calls inside it. Reasons of a reply that was cut are those of CUT_BY_LENGTH in
-- otlp/model_calls.py.
SELECT
  *,
  concat(', ', lower(finish_reason), ', ') LIKE '%, length, %'
    OR concat(', ', lower(finish_reason), ', ') LIKE '%, max_output_tokens, %'
    OR concat(', ', lower(finish_reason), ', ') LIKE '%, max_tokens, %'
    OR concat(', ', lower(finish_reason), ', ') LIKE '%, model_length, %' AS reached_limit
FROM (
  SELECT
    call.* REPLACE (
      CAST(coalesce(call.tokens_in, inside.tokens_in) AS BIGINT) AS tokens_in,
      CAST(coalesce(call.tokens_out, inside.tokens_out) AS BIGINT) AS tokens_out,
      CAST(coalesce(call.tokens_cached, inside.tokens_cached) AS BIGINT) AS tokens_cached,
      coalesce(call.model, inside.model) AS model,
      coalesce(call.finish_reason, inside.finish_reason) AS finish_reason
    )
  FROM spans AS call LEFT JOIN inner_calls
    ON call.trace_id = inner_calls.trace_id AND call.span_id = inner_calls.span_id
    LEFT JOIN inner_facts AS inside ON call.trace_id = inside.trace_id AND call.span_id = inside.span_id
  WHERE call.kind IN ('LLM', 'TOOL') AND inner_calls.span_id IS NULL
) AS calls
