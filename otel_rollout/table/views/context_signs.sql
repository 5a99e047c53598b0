-- Whether any model call of each trajectory changes what the call that it continues has. A call that goes back to an
-- earlier turn changes nothing, nor does another conversation that begins with the same system prompt.
SELECT
  pair.trace_id AS context_trace,
  bool_or(
    pair.shared < pair.length AND pair.turn_length > pair.shared AND pair.shared > pair.instructions
      AND whole.turn IS NULL AND (pair.is_of_one_parent OR 2 * pair.shared >= pair.length)
  ) AS has_changed
FROM continued_calls AS pair LEFT JOIN (
  SELECT DISTINCT trace_id, turn FROM continued_calls WHERE shared >= length
) AS whole ON pair.trace_id = whole.trace_id AND pair.turn = whole.turn
GROUP BY pair.trace_id
