"""Continue trajectories in Ray's tasks and actors, in pools of threads and processes, and over HTTP."""
