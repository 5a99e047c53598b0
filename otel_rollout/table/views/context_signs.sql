-- Whether any model call of each trajectory changes what an earlier call has: the call that it continues, or one between
-- them whose answer it has too. A call that goes back to an earlier turn changes nothing, nor does another conversation
-- that begins with the same system prompt.
SELECT
  trace_id AS context_trace, bool_or(is_changed) OR CASE WHEN bool_and(is_compared) THEN false END AS has_changed
FROM (
  SELECT
    pair.trace_id, pair.is_compared,
    CASE
      WHEN NOT pair.is_compared THEN false
      WHEN pair.turn_length <= pair.shared THEN false
      WHEN pair.new_answers > 1 AND whole.times > CASE WHEN pair.shared >= pair.length THEN 1 ELSE 0 END THEN true
      WHEN pair.shared >= pair.length THEN pair.new_answers > 0 AND pair.has_less_thought
      ELSE pair.shared > pair.instructions AND whole.turn IS NULL
        AND (pair.is_of_one_parent OR 2 * pair.shared >= pair.length)
    END AS is_changed
  FROM continued_calls AS pair LEFT JOIN (
    SELECT trace_id, turn, count(*) AS times FROM continued_calls WHERE shared >= length GROUP BY trace_id, turn
  ) AS whole ON pair.trace_id = whole.trace_id AND pair.turn = whole.turn
  UNION ALL
  SELECT trace_id, true AS is_compared, true AS is_changed FROM resumed_calls
) AS seen
GROUP BY trace_id
