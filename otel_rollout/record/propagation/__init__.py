"""Continue trajectories in Ray's tasks and actors, in pools, and over HTTP."""
