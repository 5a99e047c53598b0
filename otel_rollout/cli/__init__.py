"""The ``otel-rollout`` command."""

from otel_rollout.cli.main import app

__all__ = ["app"]
