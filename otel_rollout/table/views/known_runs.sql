-- The runs that have trajectories: their scores by identity fit their own trajectories alone.
SELECT DISTINCT coalesce(run_id, '') AS run_id FROM roots
