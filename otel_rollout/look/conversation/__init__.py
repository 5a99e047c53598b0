"""Show trajectories as conversations, on a terminal and as an HTML page."""
