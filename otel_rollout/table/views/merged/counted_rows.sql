-- The trajectories, with further columns.
SELECT * FROM merged_rows
