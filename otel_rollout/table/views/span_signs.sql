-- What the tools, verifiers and scores of each trajectory show, its own alone: whether a tool call could not be read, of
-- the trajectories that call tools; and whether a verifier says that the answer is right, or wrong.
SELECT
  trace_id AS sign_trace, bool_or(is_unreadable) AS has_unreadable, bool_or(verdict) AS is_right,
  bool_or(NOT verdict) AS is_wrong
FROM (
  SELECT
    root.trace_id,
    CASE WHEN span.kind = 'TOOL' OR (span.status = 'error' AND span.kind = 'CHAIN') THEN coalesce(
      span.status = 'error' AND (
        (span.kind <> 'TOOL' AND regexp_like(
          lower(span.name || ' ' || coalesce(span.error_type, '')), 'tool_?call|function_?call|tool_?parser|parse_?tool'
        ))
        OR coalesce(span.error_type, '') LIKE '%JSONDecodeError'
        OR regexp_like(
          lower(coalesce(span.error_message, '')),
          'invalid json in arguments|tool call is not valid json|cannot be parsed|failed to (decode|parse)'
        )
      ), false)
    END AS is_unreadable,
    CASE
      WHEN span.kind = 'EVALUATOR' AND span.score_name IS NULL AND span.output IS NOT NULL THEN regexp_match(
        span.output,
        '"(correct|is_correct|answer_correct|acc|accuracy|passed|pass|success|solved|verified)": ?'
          || '(true|false|1\.0|0\.0|1|0)[,}]'
      )[2] IN ('true', '1.0', '1')
      WHEN span.score_name = 'reward' AND regexp_like(
        lower(span.score_comment),
        '\b(incorrect|wrong|not correct|failed|fails|mismatch|does not match|invalid)\b'
      ) THEN false
      WHEN span.score_name = 'reward'
        AND regexp_like(lower(span.score_comment), '\b(correct|right|passed|passes|matches|solved)\b') THEN true
    END AS verdict
  FROM roots AS root JOIN spans AS span ON root.trace_id = span.trace_id
  WHERE (span.run_id IS NOT DISTINCT FROM root.run_id) AND (
    span.kind IN ('TOOL', 'EVALUATOR') OR span.score_name = 'reward' OR (span.status = 'error' AND span.kind = 'CHAIN')
  )
) AS seen
GROUP BY trace_id
