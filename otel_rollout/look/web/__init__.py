"""Serve the pages of runs on the loopback interface: ``otel-rollout view``."""
