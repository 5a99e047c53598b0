"""Shows trajectories on a terminal and as a page."""
