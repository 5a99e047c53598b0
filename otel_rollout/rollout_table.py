"""Read a rollout table from a program."""

from otel_rollout.look.rollout_table import RolloutTable, Trajectory, messages_of, open_table

__all__ = ["RolloutTable", "Trajectory", "messages_of", "open_table"]
