"""Read the formats of dumps: each module yields the trajectories of one format's files."""
