-- What the model calls of each trajectory show: whether any is so, of those where it is known. That no call breaks a turn
-- is known if each is compared.
SELECT
  trace_id AS reply_trace, CAST(coalesce(sum(reply_bytes), 0) AS BIGINT) AS reply_bytes,
  count(*) FILTER (WHERE is_own) AS own_calls, CAST(sum(reply_bytes) FILTER (WHERE is_own) AS BIGINT) AS own_bytes,
  CAST(sum(tokens_out) FILTER (WHERE is_own AND has_reply) AS BIGINT) AS own_tokens,
  bool_or(coalesce(is_cut, false)) FILTER (WHERE has_end) AS has_cut,
  bool_or(coalesce(is_empty, false)) FILTER (WHERE has_reply) AS has_empty,
  bool_or(has_special) FILTER (WHERE has_text) AS has_special,
  bool_or(coalesce(break_kind <> 'retokenized', false)) FILTER (WHERE continues IS NOT NULL OR break_kind IS NOT NULL)
    OR CASE WHEN bool_and(is_compared) FILTER (WHERE continues IS NOT NULL OR break_kind IS NOT NULL) THEN false END
    AS has_broken,
  bool_or(coalesce(break_kind = 'retokenized', false))
    FILTER (WHERE (continues IS NOT NULL AND has_ids) OR break_kind IS NOT NULL)
    OR CASE WHEN bool_and(is_compared)
      FILTER (WHERE (continues IS NOT NULL AND has_ids) OR break_kind IS NOT NULL) THEN false END AS has_retokenized
FROM (
  SELECT call.*, late.span_id IS NULL AS is_compared
  FROM call_signs AS call LEFT JOIN uncompared_calls AS late
    ON call.trace_id = late.trace_id AND call.span_id = late.span_id
) AS call
GROUP BY trace_id
