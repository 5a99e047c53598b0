-- The first broken prefix of each trace that has one.
SELECT
  trace_id AS break_trace, CAST(turn AS BIGINT) AS break_turn, token AS break_token, removed AS break_removed,
  added AS break_added, kind AS break_kind
FROM prefix_breaks
WHERE place = 1
