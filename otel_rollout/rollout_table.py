"""Read a rollout table from a program."""

from otel_rollout.look.rollout_table import RolloutTable, StoredTrajectory, messages_of, open_table

__all__ = ["RolloutTable", "StoredTrajectory", "messages_of", "open_table"]
