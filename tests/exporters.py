"""Span exporters for tests, found by entry point as any other exporter."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity

_ENTRY_POINTS = """\
[opentelemetry_traces_exporter]
test-file = tests.exporters:FileExporter
test-faulty = tests.exporters:FaultyExporter
test-resolving = tests.exporters:ResolvingExporter
test-otlp-0 = tests.soak.sender:SayingWho
test-otlp-1 = tests.soak.sender:SayingWho
"""


def install(site: Path) -> str:
    """Make the exporters of tests installed in the folder ``site``.

    The PYTHONPATH that finds them.
    """
    info = site / "otel_rollout_tests-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otel-rollout-tests\nVersion: 1\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    return os.pathsep.join([str(site), str(Path(__file__).parent.parent)])


class FileExporter(SpanExporter):
    """Appends each span's id and name to a file, in one write."""

    def __init__(self, path: str | None = None, token: str = "") -> None:
        self.path = path or os.environ["OTEL_TEST_FILE"]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = [json.dumps([f"{s.context.span_id:016x}", s.name, dict(s.attributes or {})]) for s in spans]
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, "".join(line + "\n" for line in lines).encode())
        os.close(descriptor)
        return SpanExportResult.SUCCESS

    def destination(self, project: str) -> str:
        return f"the file {self.path}"

    def link_run(self, run: str, rollout: str) -> ExportFailure | None:
        fault = Path(self.path + ".link-fault")
        if fault.exists():
            return ExportFailure(FailureKind(fault.read_text()), "no such run, says the test")
        with open(self.path + ".links", "a") as file:
            file.write(json.dumps([run, rollout, *sys.argv[1:2]]) + "\n")
        return None

    def shutdown(self) -> None:
        pass


class FaultyExporter(FileExporter):
    """Fails as the file ``<path>.fault`` says; rejects spans named "poison".

    It names a failure kind, and it may say how many spans pass all the same.
    """

    last_failure: ExportFailure | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        fault = Path(self.path + ".fault")
        if fault.exists():
            kind, *passing = fault.read_text().split()
            if not passing or len(spans) > int(passing[0]):
                self.last_failure = ExportFailure(FailureKind(kind), "as the test wishes", 0.05)
                return SpanExportResult.FAILURE
        if any(span.name == "poison" for span in spans):
            self.last_failure = ExportFailure(FailureKind.REJECTED, "poison is not accepted")
            return SpanExportResult.FAILURE
        return super().export(spans)


class ResolvingExporter(FaultyExporter):
    """Finds trajectories among the roots in its file; appends a score as [trace id, name, value].

    The file ``<path>.search-fault`` names the kind of failure of a search.
    """

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            with open(self.path + ".roots", "a") as file:
                for span in spans:
                    if span.parent is None:
                        run = span.resource.attributes.get("rollout.run.id")
                        root = [f"{span.context.trace_id:032x}", dict(span.attributes), run, span.start_time]
                        file.write(json.dumps(root) + "\n")
        return result

    def _stored(self) -> list[Candidate[str]]:
        roots = Path(self.path + ".roots")
        rows = map(json.loads, roots.read_text().splitlines() if roots.exists() else ())
        return [
            Candidate(TrajectoryIdentity.of(attributes, run), id_, *start)
            for id_, attributes, run, *start in rows
        ]

    def find_trajectories(
        self, scores: Sequence[TrajectoryIdentity]
    ) -> Sequence[Candidate[str]] | ExportFailure:
        fault = Path(self.path + ".search-fault")
        if fault.exists():
            return ExportFailure(FailureKind(fault.read_text()), "no search, says the test", 0.05)
        return self._stored()

    def has_trajectories(self, project: str, run: str) -> bool | ExportFailure:
        return any(found.identity.run == run for found in self._stored())

    def export_scores(self, scores: Sequence[tuple[ReadableSpan, Candidate[str]]]) -> SpanExportResult:
        fault = Path(self.path + ".rejected")
        values = [span.attributes["gen_ai.evaluation.score.value"] for span, _ in scores]
        if fault.exists() and float(fault.read_text()) in values:
            self.last_failure = ExportFailure(FailureKind.REJECTED, "no such value, says the test")
            return SpanExportResult.FAILURE
        with open(self.path + ".scores", "a") as file:
            for span, found in scores:
                value = span.attributes["gen_ai.evaluation.score.value"]
                file.write(json.dumps([found.handle, found.identity.path, value]) + "\n")
        if Path(self.path + ".killing").exists():
            os.unlink(self.path + ".killing")
            os.kill(os.getpid(), signal.SIGKILL)
        return SpanExportResult.SUCCESS
