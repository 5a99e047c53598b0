"""Record trajectories in the processes of training."""
