"""Run the command ``otel-rollout``."""

from otel_rollout.cli.main import app

__all__ = ["app"]
