"""Read one format each: functions from a file to its trajectories."""
