-- Each model call whose prompt does not begin with the prompt and the answer of the turn before. Turns are counted
-- from 1 in the order of their start; the broken turn is the one before.
WITH numbered AS (
  SELECT
    *, row_number() OVER (PARTITION BY trace_id ORDER BY start_ns, span_id) AS number
  FROM turns
  WHERE trace_id IN (SELECT trace_id FROM spans WHERE break_token IS NOT NULL)
)
SELECT
  next.trace_id, next.run_id, next.project, next.experiment, next.step, next.sample_index, next.rollout_n,
  next.validate, broken.number AS turn, broken.span_id, next.number AS next_turn, next.span_id AS next_span_id,
  next.break_token AS token, next.break_removed AS removed, next.break_added AS added, next.break_kind AS kind,
  next.break_was AS was, next.break_became AS became,
  row_number() OVER (PARTITION BY next.trace_id ORDER BY next.number) AS place,
  count(*) OVER (PARTITION BY next.trace_id) AS breaks
FROM numbered AS next LEFT JOIN numbered AS broken
  ON next.trace_id = broken.trace_id AND next.break_of = broken.span_id
WHERE next.break_token IS NOT NULL
