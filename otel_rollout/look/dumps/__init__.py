"""Read trajectories from files that other tools wrote."""
