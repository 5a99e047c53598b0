"""Test an exporter against a server that fails in every way. Needs pytest.

- ``suite``: the tests, in a class to derive from
- ``server``: the server, which gives the answers that a test sets
"""

from otel_rollout.exporting.conformance.server import Answers, FakeServer, serving
from otel_rollout.exporting.conformance.suite import SECRET, ExporterConformance

__all__ = ["SECRET", "Answers", "ExporterConformance", "FakeServer", "serving"]
