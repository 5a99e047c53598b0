-- Each of a trajectory's own model calls that continues none, and has the answer of the call before it as an answer: the
-- messages before that answer have changed. A judge that quotes an answer has it in a message of the user.
SELECT trace_id, span_id
FROM (
  SELECT
    trace_id, span_id, held_in,
    lag(ending) OVER (PARTITION BY trace_id ORDER BY start_ns, span_id) AS ending
  FROM call_signs
  WHERE is_own AND has_reply AND messages IS NOT NULL
) AS resumed
WHERE regexp_match(
  reverse(left(held_in, strpos(held_in, ending))), '"(tnatsissa|ledom|resu|loot|metsys)"'
)[1] IN ('tnatsissa', 'ledom')
