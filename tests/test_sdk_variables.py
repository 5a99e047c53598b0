"""OpenTelemetry's own variables: which of them affect recording.

Docs/configuration.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.propagation import carrier
from otel_rollout.record.recording.state import state
from tests.spool_reader import Recorded, read_directory

Read = Callable[[], list[Recorded]]
PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"


@rollout_trace_op(name="op")
def op(text: str) -> str:
    return text


@pytest.fixture
def under(
    fresh_process: None, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Recorded]]:
    """Return a function that records trajectories under variables.

    The function returns the recorded spans.
    """

    def run(trajectories: int = 1, **variables: str) -> list[Recorded]:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-file")
        monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for index in range(trajectories):
            with rollout_trace_attr(step=1, sample_index=index):
                op("x" * 1000)
        active = state.runtime
        assert active is None or active.writer.flush(10)
        return read_directory(tmp_path / "spool") if active else []

    return run


Under = Callable[..., list[Recorded]]


def test_traces_exporter_selects_the_target(under: Under, tmp_path: Path) -> None:
    """OTEL_TRACES_EXPORTER selects where spans go."""
    under()
    assert otel_rollout.shutdown(30).exporters["test-file"].delivered == 2


def test_traces_exporter_none_switches_tracing_off(under: Under) -> None:
    """OTEL_TRACES_EXPORTER=none records nothing."""
    assert under(OTEL_TRACES_EXPORTER="none") == []


def test_sdk_disabled_records_nothing(under: Under, tmp_path: Path) -> None:
    """OTEL_SDK_DISABLED switches tracing off before anything is made."""
    assert under(OTEL_SDK_DISABLED="true") == []
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    ("sampler", "argument", "least", "most"),
    [
        ("always_on", "", 40, 40),
        ("always_off", "", 0, 0),
        ("parentbased_always_off", "", 0, 0),
        ("traceidratio", "0.5", 5, 35),
        ("parentbased_traceidratio", "0", 0, 0),
    ],
)
def test_sampler_records_or_drops_whole_trajectories(
    under: Under, sampler: str, argument: str, least: int, most: int
) -> None:
    """OTEL_TRACES_SAMPLER decides once for each trajectory."""
    spans = under(40, OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)
    roots = [span for span in spans if span.name == "rollout_trace"]
    assert least <= len(roots) <= most
    assert len(spans) == 2 * len(roots)
    assert otel_rollout.status().sampled_out.get("sampled_out", 0) == 40 - len(roots)


def test_operation_that_is_sampled_out_takes_what_it_calls_along(
    fresh_process: None, test_exporters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation outside trajectories is sampled out with those below it.

    It is counted once.
    """
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-file")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")

    @rollout_trace_op
    def outer() -> str:
        return op("inner")

    assert outer() == "inner"
    assert otel_rollout.status().sampled_out == {"sampled_out": 1}
    assert otel_rollout.status().started == 0


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER='sometimes' is not installed; known are"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"},
            "OTEL_TRACES_SAMPLER_ARG='half' is not a share from 0 to 1",
        ),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "7"},
            "OTEL_TRACES_SAMPLER_ARG='7' is not a share from 0 to 1",
        ),
    ],
)
def test_wrong_sampler_is_one_error_and_everything_is_recorded(
    under: Under, caplog: pytest.LogCaptureFixture, variables: dict[str, str], problem: str
) -> None:
    """The error names the wrong value."""
    assert len(under(3, **variables)) == 6
    assert [problem in record.message for record in caplog.records].count(True) == 1


def test_resource_variables_describe_every_span(under: Under) -> None:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES describe every span's resource."""
    (span, _) = under(OTEL_SERVICE_NAME="service", OTEL_RESOURCE_ATTRIBUTES="a=b%20c,service.name=other")
    assert (span.resource["service.name"], span.resource["a"]) == ("service", "b c")


def test_propagators_variable_changes_nothing(under: Under) -> None:
    """Trajectories travel as W3C Trace Context, whatever OTEL_PROPAGATORS says."""
    under(OTEL_PROPAGATORS="b3")
    with rollout_trace_attr(step=1):
        assert set(carrier.inject() or {}) == {"traceparent", carrier.IDENTITY_KEY}


def test_configuration_file_of_the_sdk_changes_nothing(under: Under, tmp_path: Path) -> None:
    """OTEL_CONFIG_FILE is not read: exporter, service and whether tracing is on come from variables."""
    file = tmp_path / "otel.yaml"
    file.write_text(
        "file_format: '1.0'\ndisabled: true\nresource: {attributes: [{name: service.name, value: file}]}\n"
        "tracer_provider: {processors: [{simple: {exporter: {console: {}}}}], sampler: {always_off: {}}}\n"
    )
    (span, _) = under(OTEL_CONFIG_FILE=str(file), OTEL_SERVICE_NAME="variable")
    assert span.resource["service.name"] == "variable"
    assert otel_rollout.shutdown(30).exporters["test-file"].delivered == 2


@pytest.mark.parametrize(
    "variable",
    [
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        "OTEL_ATTRIBUTE_COUNT_LIMIT",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
        "OTEL_SPAN_EVENT_COUNT_LIMIT",
        "OTEL_SPAN_LINK_COUNT_LIMIT",
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "OTEL_PYTHON_ID_GENERATOR",
        "OTEL_PYTHON_TRACER_PROVIDER",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS",
    ],
)
def test_variable_that_is_not_honoured_changes_nothing(under: Under, variable: str) -> None:
    """Limits would cut JSON and evict identity.

    Other variables name parts of the SDK that are not used.
    """
    call, root = under(**{variable: "1"})
    assert call.input == {"text": "x" * 1000}
    assert (root.attributes["rollout.step"], root.attributes["rollout.sample_index"]) == (1, 0)


def test_table_in_docs_lists_the_tested_variables() -> None:
    """The table's variables are exactly the tested ones."""
    table = PAGE.read_text().partition("## OpenTelemetry's own variables")[2].partition("\n## ")[0]
    here = Path(__file__).read_text()
    listed = set(re.findall(r"^\| `(OTEL_\w+)`", table, re.MULTILINE))
    tested = set(re.findall(r"OTEL_[A-Z_]+\b", here)) - {"OTEL_TEST_FILE", "OTEL_"}
    assert listed == tested


def test_package_uses_no_private_names_of_opentelemetry() -> None:
    """No name of OpenTelemetry that begins with an underscore is used, except to join its tracers."""
    root = Path(__file__).parent.parent
    seams = {"joining.py", "joined_span.py", "provider.py"}  # which check that the names are there
    modules = [*(root / "otel_rollout").rglob("*.py"), *(root / "exporters").rglob("*.py")]
    for path in modules:
        if path.name in seams:
            continue
        private = re.findall(
            r"from opentelemetry[\w.]* import .*\b_\w+|opentelemetry[\w.]*\._\w+", path.read_text()
        )
        assert private == [], path
