-- The spans that take part of a trajectory's time. A score that was given afterwards does not.
SELECT * FROM spans
WHERE start_time IS NOT NULL AND (
  score_name IS NULL
  OR (duration_ns > 0 AND coalesce(score_by, 'trace') = 'trace' AND coalesce(score_origin, '') <> 'outside')
)
