"""Beside other observability libraries, trajectories are whole, and the libraries' backends lose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.faults.target import Receiver
from tests.foreign.program import MOMENTS, TRAJECTORIES
from tests.spool_reader import Recorded, plain_attributes, read_directory, tree

LIBRARIES = ("sentry", "sentry-otlp", "datadog", "logfire", "weave")
WITH_OWN_TRACER = {"sentry", "datadog"}
"""Libraries whose native spans are none of OpenTelemetry's."""
WITHOUT_PROVIDER = {"sentry"}
APART = {"datadog"}
"""Libraries whose own tracer makes the application's spans: their backend alone gets these."""
SHARED = {"sentry-otlp", "weave"}
"""Libraries whose backend gets spans of trajectories, too."""
OPERATIONS = {"rollout_trace": 1, "episode": 1, "turn": 2, "job": 2, "around": 1, "tool": 5}
"""Our spans of a trajectory."""
INSIDE = {"app in task": 2, "app in thread": 2}
"""The application's spans of a trajectory, besides native ones."""
SECONDS = 100


class KeepingReceiver(Receiver):
    """An OTLP receiver that keeps the spans it got."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        super().__init__()

    def take(self, body: bytes, credential: str) -> int:
        request = ExportTraceServiceRequest.FromString(body)
        self.spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        return super().take(body, credential)


@pytest.fixture
def receiver() -> Iterator[KeepingReceiver]:
    """Run an OTLP receiver."""
    receiver = KeepingReceiver()
    yield receiver
    receiver.close()


def run(library: str, moment: str, exporters: Any = None, **variables: str) -> Counter[str]:
    """Run the program; return the spans that the library's backend got."""
    given = {} if exporters is None else {"TEST_EXPORTERS": json.dumps(exporters)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.foreign.program", library, moment],
        env={**os.environ, **given, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "internal error" not in done.stderr, done.stderr[-3000:]
    return Counter(json.loads(done.stdout.splitlines()[-1]))


def application_spans(moment: str) -> Counter[str]:
    """Return the application's spans after the library was started, in all trajectories and outside."""
    number = TRAJECTORIES - 1 if moment == "after" else TRAJECTORIES
    names = {**INSIDE, "native": 1, "app outside": 1}
    return Counter({name: times * number for name, times in names.items()})


def our_spans(trajectories: int = TRAJECTORIES) -> Counter[str]:
    """Return our spans of some trajectories."""
    return Counter({name: times * trajectories for name, times in OPERATIONS.items()})


def trajectories_of(spans: list[Recorded]) -> list[list[Recorded]]:
    """Return the spans of each trajectory, in order of the steps; fail for a span of none."""
    traces: dict[bytes, list[Recorded]] = {}
    for span in spans:
        traces.setdefault(span.span.trace_id, []).append(span)
    return sorted(traces.values(), key=lambda trace: trace[0].attributes["rollout.step"])


def in_brief(span: Any) -> tuple[Any, ...]:
    """Return what tells a span apart: ids, name, and identity."""
    identity = {k: v for k, v in plain_attributes(span.attributes).items() if k.startswith("rollout.")}
    return span.trace_id, span.span_id, span.parent_span_id, span.name, json.dumps(identity, sort_keys=True)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_trajectories_are_whole_whenever_the_library_is_started(
    library: str, moment: str, receiver: KeepingReceiver, tmp_path: Path
) -> None:
    """All spans have parent and identity, with the application's own; the receiver gets what was recorded."""
    got = run(library, moment, {"otlp": {"endpoint": f"{receiver.url}/v1/traces"}})
    recorded = read_directory(tmp_path / "spool")
    trajectories = trajectories_of(recorded)
    assert len(trajectories) == TRAJECTORIES
    for step, spans in enumerate(trajectories, start=1):
        assert list(tree(spans)) == ["rollout_trace"]
        names = Counter(span.name for span in spans)
        assert {name: names[name] for name in OPERATIONS} == OPERATIONS
        assert {span.attributes["rollout.step"] for span in spans} == {step}
        assert {span.attributes["rollout.sample_index"] for span in spans} == {step}
        if library not in WITHOUT_PROVIDER and (step > 1 or moment != "after"):
            inside = dict.fromkeys(INSIDE, 0) if library in APART else INSIDE
            assert {name: names[name] for name in INSIDE} == inside
            assert names["native"] == (library not in WITH_OWN_TRACER)
    assert sorted(map(in_brief, receiver.spans)) == sorted(in_brief(span.span) for span in recorded)
    theirs = application_spans(moment)
    if library in WITHOUT_PROVIDER:
        theirs = Counter(native=theirs["native"])
    assert {name: got[name] for name in theirs} == theirs
    if library not in SHARED:
        assert got == theirs


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_backend_gets_the_same_without_this_package(library: str) -> None:
    """The numbers that the tests expect of the application's spans are those of the library alone."""
    expected = application_spans("first")
    alone = Counter(native=expected["native"]) if library in WITHOUT_PROVIDER else expected
    assert run(library, "first") == alone


def test_spans_take_the_direct_way_to_the_project_of_weave_init(tmp_path: Path) -> None:
    """Weave gets trajectories from the forwarder, and not also by the provider of weave.init."""
    variables = {"WANDB_ENTITY": "local-team", "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1"}
    got = run("weave", "before", {"weave": {}}, **variables)
    assert got == application_spans("before")
    for spans in trajectories_of(read_directory(tmp_path / "spool")):
        assert Counter(span.name for span in spans) == {**OPERATIONS, **INSIDE, "native": 1}
        assert list(tree(spans)) == ["rollout_trace"]


def test_another_project_of_weave_init_still_gets_spans_of_trajectories() -> None:
    """Its provider exports to a project that the forwarder does not deliver to."""
    got = run("weave", "before", {"weave": {"project": "other"}}, WANDB_ENTITY="local-team")
    assert got == application_spans("before") + our_spans()


@pytest.mark.parametrize(
    ("library", "choice", "expected"),
    [("logfire", "share", our_spans()), ("sentry-otlp", "apart", Counter())],
)
def test_the_setting_decides_whether_spans_go_through_the_provider(
    library: str, choice: str, expected: Counter[str], receiver: KeepingReceiver, tmp_path: Path
) -> None:
    """Either way, trajectories are recorded whole."""
    exporters = {"otlp": {"endpoint": f"{receiver.url}/v1/traces"}}
    got = run(library, "before", exporters, OTEL_ROLLOUT_APPLICATION_PROVIDER=choice)
    assert got == application_spans("before") + expected
    for spans in trajectories_of(read_directory(tmp_path / "spool")):
        assert Counter(span.name for span in spans) == {**OPERATIONS, **INSIDE, "native": 1}
        assert list(tree(spans)) == ["rollout_trace"]
