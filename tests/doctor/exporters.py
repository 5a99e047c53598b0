"""Exporters whose ``check()`` returns what ``OTEL_TEST_ENDPOINT`` says."""

from __future__ import annotations

import os

from otel_rollout.exporting.api import ExportFailure, FailureKind
from tests.exporters import FileExporter


class CheckedExporter(FileExporter):
    """An exporter whose endpoint is fine, fails or raises."""

    def __init__(self) -> None:
        super().__init__("/dev/null")
        print("an exporter that prints")

    def check(self) -> ExportFailure | None:
        wish = os.environ["OTEL_TEST_ENDPOINT"]
        if wish == "broken":
            raise RuntimeError(f"token {os.environ['OTEL_TEST_TOKEN']} is odd")
        if wish == "fine":
            return None
        return ExportFailure(FailureKind(wish), f"it knows no {os.environ['OTEL_TEST_TOKEN']}")


class DemandingExporter(FileExporter):
    """An exporter that cannot be built, and quotes a secret."""

    def __init__(self) -> None:
        raise ValueError(f"OTEL_TEST_TOKEN is {os.environ['OTEL_TEST_TOKEN']!r}, which is no good")
