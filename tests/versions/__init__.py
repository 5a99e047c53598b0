"""Tests with an older version of otel-rollout, which is taken from this repository's history."""
