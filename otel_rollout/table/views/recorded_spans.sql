-- Every row of the table, also a span that was delivered twice. A span of a trajectory, and a score by identity, has
-- the names of trajectory and group.
SELECT *, group_path || '/' || coalesce(CAST(rollout_n AS VARCHAR), rollout_text, '-') AS path
FROM (
  SELECT
    *,
    CASE WHEN validate IS NOT NULL THEN
      CASE WHEN validate THEN 'validation/' ELSE '' END
        || coalesce(CAST(step AS VARCHAR), step_text, '-') || '/' || coalesce(sample_index, '-')
    END AS group_path
  FROM stored_rows
) AS named
