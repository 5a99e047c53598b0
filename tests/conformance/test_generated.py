"""Generated trajectories are read back from each backend as recorded."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import ExportsLines
from otel_rollout.exporting.entry_points import load
from tests.conformance.backend import Adapter, Operation, differences, exact, trees
from tests.conformance.generated import SECRET, plans
from tests.conformance.mlflow_adapter import MlflowAdapter
from tests.conformance.otlp_adapter import operations_of, receiver
from tests.conformance.weave_adapter import WeaveAdapter
from tests.sdk_spans import spans_of
from tests.spool_reader import read_lines, segment_lines, segments_below

NAMES = ("mlflow", "weave", "otlp", "otlp_proto_http")
EXAMPLES = 15
"""Plans for each backend, of up to eight trajectories each. They take about a minute."""

# A warning that MLflow causes.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
# No shrinking: each example costs requests to a server.
ASKED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Recorder:
    """A process that records plans, and the lines that it wrote since the last plan."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._seen: set[bytes] = set()
        variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        variables |= {
            "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
            "OTEL_ROLLOUT_PROJECT": "generated",
            "OTEL_ROLLOUT_EXPERIMENT": "made up",
            "OTEL_ROLLOUT_REDACT": "secrets",
            "OTEL_TRACES_EXPORTER": "spool",
            "OTEL_ROLLOUT_KEEP": "true",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.generated"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def record(self, plan: list[dict[str, Any]], project: str) -> list[bytes]:
        """Record a plan, and return its lines as those of a project."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(plan) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "recorded\n"
        lines = [line for path in segments_below(self._spool) for line in segment_lines(path)]
        new = [line for line in lines if line not in self._seen]
        self._seen.update(new)
        assert SECRET.encode() not in b"".join(new)
        named = b'"rollout.project_name","value":{"stringValue":"%b"}'
        return [line.replace(named % b"generated", named % project.encode()) for line in new]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """One process that records all plans."""
    recorder = Recorder(tmp_path_factory.mktemp("generated"))
    yield recorder
    recorder.process.communicate(timeout=60)


@pytest.fixture(scope="module", params=NAMES)
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    """Each backend under test in turn."""
    if request.param == "mlflow":
        yield MlflowAdapter(request.getfixturevalue("new_store")())
    elif request.param == "weave":
        yield WeaveAdapter(request.getfixturevalue("local_weave"))
    else:
        with receiver() as otlp:
            yield next(adapter for adapter in otlp if adapter.exporter == request.param)


def as_recorded(value: Any) -> Any:
    """Return the recorded form of a value, as docs/recording.md promises."""
    if isinstance(value, Mapping):
        return {key: as_recorded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [as_recorded(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def as_text(text: str | None) -> str:
    """Return how a comment or an exception's message is recorded, as valid UTF-8."""
    return (text or "").encode("utf-8", "replace").decode()


def assert_same(planned: Any, found: Any) -> None:
    """Compare values and types; a text with a secret must be without it."""
    if isinstance(planned, dict) and isinstance(found, dict):
        assert planned.keys() == found.keys()
        for key, value in planned.items():
            assert_same(value, found[key])
    elif isinstance(planned, list) and isinstance(found, list):
        assert len(planned) == len(found)
        for one, other in zip(planned, found, strict=True):
            assert_same(one, other)
    elif isinstance(planned, str) and SECRET in planned:
        assert isinstance(found, str)
        assert SECRET not in found
    else:
        assert exact(planned) == exact(found)


@ASKED
@given(plan=plans)
def test_recorded_lines_hold_what_the_program_did(recorder: Recorder, plan: list[dict[str, Any]]) -> None:
    """All recorded fields are as the program gave them.

    Fields are names, nesting, inputs, outputs, errors, identity and the newest scores.
    """
    lines = recorder.record(plan, f"p{uuid.uuid4().hex}")
    spans = [recorded.span for recorded in read_lines(lines)]
    found = operations_of(spans)
    of_parent: dict[str | None, list[Operation]] = {}
    for one in sorted(found, key=lambda operation: operation.start_us):
        if not one.name.startswith("score "):
            of_parent.setdefault(one.parent_id, []).append(one)
    by_start = {span.span_id.hex(): span.start_time_unix_nano for span in spans}

    def compare(planned: list[dict[str, Any]], parent: str | None) -> None:
        at = sorted(of_parent.get(parent, []), key=lambda operation: by_start[operation.id])
        assert [one["name"] for one in planned] == [one.name for one in at]
        for one, operation in zip(planned, at, strict=True):
            assert_same(as_recorded({"given": one["given"]}), operation.inputs)
            failed = one["error"] is not None
            assert operation.failed is failed
            if failed:
                assert_same(["LookupError", as_text(one["error"])], list(operation.exception or ()))
            else:
                assert_same(as_recorded(one["result"]), operation.output)
            compare(one["below"], operation.id)

    roots = sorted(of_parent[None], key=lambda operation: by_start[operation.id])
    for planned, root in zip(plan, roots, strict=True):
        expected = {name: value for name, value in planned["identity"].items() if value is not None}
        assert exact(root.identity) == exact({"experiment_name": "made up", **expected})
        assert root.failed is (planned["error"] is not None)
        if planned["output"] is not None:
            assert_same(as_recorded(planned["output"]), root.output)
        in_order = sorted(planned["scores"], key=lambda given: given["how"] == "by id, later")
        newest = {given["name"]: [_score(given["value"]), as_text(given["comment"])] for given in in_order}
        shown = {name: [score.value, score.comment] for name, score in root.scores.items()}
        assert exact(shown) == exact(newest)
        compare(planned["operations"], root.id)


def _score(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        return value
    return float(value) if math.isfinite(value) else str(value)


def test_backend_gives_back_what_was_recorded(
    recorder: Recorder, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every field has its value and type, in any order and batches of delivery."""
    for variable, value in adapter.variables.items():
        monkeypatch.setenv(variable, value)
    exporter = load(adapter.exporter, {})

    @ASKED
    @given(plan=plans, order=st.randoms(use_true_random=False))
    def ask(plan: list[dict[str, Any]], order: random.Random) -> None:
        project = f"generated-{uuid.uuid4().hex[:8]}"
        lines = recorder.record(plan, project)
        reference = operations_of(recorded.span for recorded in read_lines(lines))
        order.shuffle(lines)
        for batch in (lines[::2], lines[1::2]):
            deliver(exporter, batch)
        deliver(exporter, [line for line in lines if order.random() < 0.3])  # some again, as after a crash
        found = adapter.read(project)
        assert SECRET not in repr(found)
        assert not differences(trees(found), trees(reference, adapter.shows))

    try:
        ask()
    finally:
        exporter.shutdown()


def deliver(exporter: Any, lines: list[bytes]) -> None:
    """Export lines as a forwarder does."""
    if not lines:
        return
    if isinstance(exporter, ExportsLines):
        result = exporter.export_lines([line + b"\n" for line in lines])
    else:
        result = exporter.export([span for line in lines for span in spans_of(line)])
    assert result is SpanExportResult.SUCCESS, getattr(exporter, "last_failure", None)
