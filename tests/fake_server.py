"""The server of the conformance suite, for other tests."""

from otel_rollout.exporting.conformance.server import FakeServer, serving

__all__ = ["FakeServer", "serving"]
