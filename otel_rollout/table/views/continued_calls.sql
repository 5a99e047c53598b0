-- Each model call with messages that continues another one. Instructions are the system's messages; new answers are those
-- beyond the other's messages.
SELECT
  next.trace_id, turn.span_id AS turn, next.shared, next.turn_length,
  coalesce(next.messages_system, 0) AS instructions, coalesce(turn.turn_length, turn.messages) AS length,
  next.parent_span_id IS NOT DISTINCT FROM turn.parent_span_id AS is_of_one_parent,
  next.messages_assistant - CASE WHEN next.messages = next.turn_length THEN turn.messages_assistant ELSE 0 END
    AS new_answers,
  turn.has_thought AND NOT next.tells_thought AS has_less_thought, late.span_id IS NULL AS is_compared
FROM call_signs AS next JOIN call_signs AS turn ON next.trace_id = turn.trace_id AND next.continues = turn.span_id
  LEFT JOIN uncompared_calls AS late ON next.trace_id = late.trace_id AND next.span_id = late.span_id
WHERE next.messages IS NOT NULL AND turn.messages IS NOT NULL
