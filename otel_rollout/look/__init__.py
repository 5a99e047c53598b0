"""Look at trajectories: sources, conversations, analysis, pages."""
