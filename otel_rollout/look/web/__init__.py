"""Serve the pages of a run on the loopback: ``otel-rollout view``."""
