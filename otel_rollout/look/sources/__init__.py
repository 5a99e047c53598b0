"""Read trajectories from a spool, from MLflow and from a rollout table."""
