"""Instrument a worker of a Ray job: the setup hooks of all versions import this name."""

from otel_rollout.record.propagation.instrument import instrument_worker

__all__ = ["instrument_worker"]
