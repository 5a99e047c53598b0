"""The doctor tells whose spans of other libraries are recorded, and whose are lost and why."""

import json
import subprocess
import sys
from importlib import metadata

import attrs  # noqa: F401 - a library that the program has imported
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased

import otel_rollout
from otel_rollout import doctor
from otel_rollout.doctor import checks, cluster
from otel_rollout.doctor.diagnosis import Verdict
from tests.doctor import libraries

WAVE = "openinference-instrumentation-wave 1.0"
CHECKS = ("instrumentors", "other spans", "own spans", "traceparent")
OTHER_WAVE = "opentelemetry-instrumentation-wave 1.0"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Install the instrumentors of ``tests.doctor.libraries``."""
    libraries.install(tmp_path / "instrumentors")
    monkeypatch.syspath_prepend(str(tmp_path / "instrumentors"))
    return str(tmp_path / "instrumentors")


@pytest.fixture
def examine(site, monkeypatch, fresh_process):
    """Return a function that examines this process with further variables: (check, found) → row."""

    def rows(**variables):
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found = doctor.examine().rows
        return [row for row in found if row.check in CHECKS]

    return rows


@pytest.fixture
def set_provider(monkeypatch):
    """Return a function that sets the application's tracer provider."""
    return lambda provider: monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)


def row_with(rows, words):
    (row,) = [row for row in rows if words in row.found]
    return row


def test_installed_instrumentors_are_listed_by_what_becomes_of_them(examine):
    """One row has those that may be switched on, one those of no use, each with the reason."""
    rows = examine()
    off = row_with(rows, "not switched on, unless the program or OTEL_ROLLOUT_INSTRUMENT does so: ")
    assert WAVE in off.found
    useless = row_with(rows, "installed, not used (what they instrument is missing or too old): ")
    named = "absent of opentelemetry-instrumentation-absent 1.0"
    assert f"{named}: no-such-library is not installed" in useless.found
    assert "instrumentation-old 1.0: it needs hypothesis>=1000, and version" in useless.found
    assert {off.verdict, useless.verdict} == {Verdict.OK}


def test_imported_library_without_instrumentor_is_a_warning(examine):
    """The advice names the setting; a library that is too old for its instrumentor is told apart."""
    rows = examine()
    missing = row_with(rows, "attrs is imported, and no instrumentor of it is on")
    assert missing.verdict is Verdict.WARN
    assert missing.advice.startswith("Set OTEL_ROLLOUT_INSTRUMENT=wave and call otel_rollout.instrument()")
    too_old = row_with(rows, "hypothesis is imported, and opentelemetry-instrumentation-old 1.0 cannot")
    assert "it needs hypothesis>=1000" in too_old.advice


def test_chosen_instrumentors_are_told_and_switched_on(examine):
    """Before `instrument()` the advice is to call it; afterwards the instrumentor is on."""
    rows = examine(OTEL_ROLLOUT_INSTRUMENT="wave,nonesuch,absent")
    assert WAVE in row_with(rows, "OTEL_ROLLOUT_INSTRUMENT switches on, when").found
    assert "no installed instrumentor is called 'nonesuch'" in row_with(rows, "nonesuch").found
    absent = row_with(rows, "OTEL_ROLLOUT_INSTRUMENT: opentelemetry-instrumentation-absent")
    assert "no-such-library is not installed" in absent.found
    assert row_with(rows, "no instrumentor of it is on").advice.startswith("Call otel_rollout.instrument()")
    otel_rollout.instrument()
    rows = examine()
    assert row_with(rows, "on in this process: ").found == f"on in this process: {WAVE}"
    assert not [row for row in rows if "attrs is imported" in row.found]


def test_two_instrumentors_of_one_library_are_a_warning(examine):
    """The row names both."""
    both = [libraries.WaveInstrumentor(), libraries.OtherWaveInstrumentor()]
    for instrumentor in both:
        instrumentor.instrument()
    try:
        found = row_with(examine(), "are both on for wave")
    finally:
        for instrumentor in both:
            instrumentor.uninstrument()
    assert (WAVE in found.found, OTHER_WAVE in found.found) == (True, True)
    assert "Switch one of them off" in found.advice


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, "not recorded, because OTEL_SDK_DISABLED is true"),
        ({"OTEL_TRACES_EXPORTER": ""}, "not recorded, because tracing is off"),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "OTEL_TRACES_SAMPLER leaves out 100% of trajectories"),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            "OTEL_TRACES_SAMPLER leaves out 75% of trajectories",
        ),
    ],
)
def test_variables_that_lose_spans_are_a_warning(examine, variables, words):
    """The row names the variable."""
    assert row_with(examine(**variables), words).verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        (lambda: TracerProvider(sampler=ALWAYS_OFF), "AlwaysOffSampler, leaves out trajectories"),
        (
            lambda: TracerProvider(sampler=ParentBased(ALWAYS_OFF)),
            "AlwaysOffSampler, leaves out trajectories",
        ),
        (lambda: TracerProvider(sampler=TraceIdRatioBased(0.1)), "TraceIdRatioBased{0.1}, leaves out"),
        (TracerProvider, "keeps 128 attributes of a span"),
        (trace.NoOpTracerProvider, "the tracer provider is opentelemetry.trace.NoOpTracerProvider"),
    ],
)
def test_provider_that_loses_spans_is_a_warning(examine, set_provider, provider, words):
    """The row says what the application's provider does, and the advice what to change."""
    set_provider(provider())
    found = row_with(examine(), words)
    assert found.verdict is Verdict.WARN
    assert found.advice


def test_provider_that_loses_nothing_is_no_warning(examine, set_provider):
    """A provider that samples everything and keeps every attribute is fine, as is none."""
    assert row_with(examine(), "with or without a tracer provider").verdict is Verdict.OK
    limits = SpanLimits(max_span_attributes=SpanLimits.UNSET)
    for sampler in (ALWAYS_ON, ParentBased(ALWAYS_ON)):
        set_provider(TracerProvider(sampler=sampler, span_limits=limits))
        (found,) = [row for row in examine() if row.check == "other spans"]
        assert found.verdict is Verdict.OK
        assert found.found == "recorded inside trajectories, through the application's tracer provider"


def test_provider_made_while_disabled_is_a_warning(examine, set_provider, monkeypatch):
    """A provider remembers that OTEL_SDK_DISABLED was true."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    set_provider(TracerProvider())
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    assert row_with(examine(), "OTEL_SDK_DISABLED was true").verdict is Verdict.WARN


class WrappedProvider(trace.TracerProvider):
    """A provider of another class around the SDK's, as Logfire's is."""

    def __init__(self, provider):
        self.provider = provider

    def get_tracer(self, *args, **kwargs):
        return self.provider.get_tracer(*args, **kwargs)


def exporting_provider(*endpoints):
    """Return a provider that exports by OTLP to endpoints."""
    limits = SpanLimits(max_span_attributes=SpanLimits.UNSET)
    provider = TracerProvider(span_limits=limits)
    for endpoint in endpoints:
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


OURS, THEIRS = "http://127.0.0.1:1/v1/traces", "http://127.0.0.1:2/v1/traces"
SHARED, DIRECT = "go through the application's tracer provider", "are recorded directly"


@pytest.mark.parametrize(
    ("choice", "make", "way", "why"),
    [
        ("auto", lambda: exporting_provider(THEIRS), SHARED, "OTLPSpanExporter"),
        ("auto", lambda: exporting_provider(OURS, THEIRS), SHARED, "OTLPSpanExporter"),
        ("auto", lambda: exporting_provider(OURS), DIRECT, "all exporters of the provider send to targets"),
        ("auto", exporting_provider, SHARED, "it has no exporter"),
        ("auto", lambda: WrappedProvider(exporting_provider(THEIRS)), DIRECT, "WrappedProvider would send"),
        ("auto", trace.NoOpTracerProvider, DIRECT, "NoOpTracerProvider is no provider of"),
        ("apart", lambda: exporting_provider(THEIRS), DIRECT, "OTEL_ROLLOUT_APPLICATION_PROVIDER is apart"),
        ("share", lambda: exporting_provider(OURS), SHARED, "OTEL_ROLLOUT_APPLICATION_PROVIDER is share"),
    ],
)  # fmt: skip
def test_way_beside_the_applications_provider_is_told(examine, set_provider, choice, make, way, why):
    """The row says whether spans of trajectories go through the provider, and why."""
    set_provider(make())
    rows = examine(
        OTEL_TRACES_EXPORTER="otlp",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=OURS,
        OTEL_ROLLOUT_APPLICATION_PROVIDER=choice,
    )
    (found,) = [row for row in rows if row.check == "own spans"]
    assert way in found.found
    assert why in found.found


def test_provider_around_the_sdks_loses_no_spans(examine, set_provider):
    """Logfire's provider is no warning: the provider inside is joined."""
    set_provider(WrappedProvider(exporting_provider(THEIRS)))
    (found,) = [row for row in examine() if row.check == "other spans"]
    assert found.verdict is Verdict.OK


def test_no_way_is_told_without_a_provider(examine):
    """A program that has set no provider has no row about it."""
    assert not [row for row in examine() if row.check == "own spans"]


def test_http_clients_and_their_hosts_are_told(examine):
    """The row names the clients and hosts; an instrumentor that sends to every host is a warning."""
    assert row_with(
        examine(),
        "to hosts of OTEL_ROLLOUT_TRACEPARENT_HOSTS=private, after otel_rollout.instrument(), "
        "by the clients: urllib3 ",
    )
    assert row_with(examine(OTEL_ROLLOUT_TRACEPARENT_HOSTS="none"), "on no request")
    found = row_with(
        examine(OTEL_ROLLOUT_INSTRUMENT="urllib3"), "to every host, by the instrumentors opentelemetry-"
    )
    assert found.verdict is Verdict.WARN


def test_command_tells_the_installed_instrumentors(site):
    """`otel-rollout doctor --json` has the rows, without importing an instrumentor."""
    program = f"import sys; sys.path.insert(0, {site!r}); from otel_rollout.cli import app; app()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rows = json.loads(ran.stdout)["rows"]
    found = [row["found"] for row in rows if row["check"] == "instrumentors"]
    assert any(WAVE in text for text in found)
    assert not any("is imported" in text for text in found)


def test_node_without_a_chosen_instrumentor_is_a_warning(site):
    """The row compares instrumentor and library with the driver's; the advice installs the driver's."""
    environ = {"OTEL_TRACES_EXPORTER": "console", "OTEL_ROLLOUT_INSTRUMENT": "wave"}
    node = {
        "executable": "/node/python",
        "prefix": sys.prefix,
        "versions": {**checks.versions(), "attrs": metadata.version("attrs")},
        "present": [],
        "different": [],
        "problem": None,
        "findings": [],
    }
    rows = {finding.check: finding for finding in cluster.compare_with_driver(node, environ)}
    found = rows["instrumentors"]
    assert found.verdict is Verdict.WARN
    assert found.found == "openinference-instrumentation-wave is missing (driver: 1.0)"
    assert "/node/python -m pip install openinference-instrumentation-wave==1.0" in found.advice
    node["versions"]["openinference-instrumentation-wave"] = "1.0"
    assert "instrumentors" not in {finding.check for finding in cluster.compare_with_driver(node, environ)}


def test_node_tells_what_it_switches_on(site):
    """A node's own findings have the chosen instrumentors, and names that choose none there."""
    environ = {"OTEL_TRACES_EXPORTER": "console", "OTEL_ROLLOUT_INSTRUMENT": "wave,nonesuch"}
    found = [finding for finding in checks.check_node(environ) if finding.check == "instrumentors"]
    assert [finding.verdict for finding in found] == [Verdict.OK, Verdict.WARN]
    assert WAVE in found[0].found
    assert "'nonesuch'" in found[1].found
