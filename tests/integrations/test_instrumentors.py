"""OTEL_ROLLOUT_INSTRUMENT switches on instrumentors of other libraries, each failing alone."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.integrations import instrumentors
from otel_rollout.integrations.state import state as integrations
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs.state import state as runs
from tests.integrations.distributions import add_instrumentor, add_library
from tests.spool_reader import Recorded, read_directory

OPENINFERENCE = ("openinference_instrumentor", "opentelemetry_instrumentor")


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """Return a directory of installed distributions, empty at first."""
    path = tmp_path / "installed"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    before = set(sys.modules)
    yield path
    for name in sorted(set(sys.modules) - before, reverse=True):  # instrumentors before their library
        if str(path) in str(getattr(sys.modules[name], "__file__", "")):
            instrumentor = getattr(sys.modules.pop(name), "LibaInstrumentor", None)
            if instrumentor is not None and instrumentor().is_instrumented_by_opentelemetry:
                instrumentor().uninstrument()


def instrument(names: str) -> None:
    """Choose instrumentors, as OTEL_ROLLOUT_INSTRUMENT does."""
    importlib.invalidate_caches()
    otel_rollout.configure(instrument=names)
    otel_rollout.instrument()


def scopes(spans: list[Recorded]) -> list[str]:
    return sorted(span.scope for span in spans if span.scope != "otel_rollout")


def call(library: str) -> None:
    with rollout_trace_attr(step=1):
        assert importlib.import_module(library).call(7) == 7


def test_installed_instrumentors_are_described_without_an_import(site):
    """Each once, with its library, and why it cannot be used."""
    add_library(site, "liba", "2.0")
    add_instrumentor(site, "openinference-instrumentation-liba", "liba", groups=OPENINFERENCE)
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba", needs=">=3")
    add_instrumentor(site, "opentelemetry-instrumentation-libb", "libb")
    known = ("liba", "libb")
    found = [each for each in instrumentors.installed() if each.name in known]
    assert [(each.distribution, each.group, each.library, each.is_on, each.problem) for each in found] == [
        ("openinference-instrumentation-liba", "openinference_instrumentor", "liba", False, ""),
        (
            "opentelemetry-instrumentation-liba",
            "opentelemetry_instrumentor",
            "liba",
            False,
            "it needs liba>=3, and version 2.0 is installed",
        ),
        (
            "opentelemetry-instrumentation-libb",
            "opentelemetry_instrumentor",
            "libb",
            False,
            "libb is not installed",
        ),
    ]
    assert not [name for name in sys.modules if name.endswith(("_liba", "_libb"))]


def test_chosen_instrumentor_is_switched_on_when_its_library_is_imported(site, recorded):
    """Not before; then calls inside trajectories are spans with identity; uninstrument() switches it off."""
    add_library(site, "liba")
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    instrument("LIBA")
    assert "liba" not in sys.modules
    assert "opentelemetry_instrumentation_liba" not in sys.modules
    call("liba")
    (span,) = [span for span in recorded() if span.name == "call of liba"]
    assert span.attributes["rollout.step"] == 1
    assert [each.is_on for each in instrumentors.installed() if each.name == "liba"] == [True]
    otel_rollout.uninstrument()
    assert [each.is_on for each in instrumentors.installed() if each.name == "liba"] == [False]


def test_library_imported_before_is_instrumented_at_once(site, recorded):
    """So it is if configure() comes after instrument()."""
    add_library(site, "liba")
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    importlib.import_module("liba")
    otel_rollout.instrument()
    otel_rollout.configure(instrument="liba")
    call("liba")
    assert scopes(recorded()) == ["opentelemetry_instrumentation_liba"]


def test_variables_set_after_instrument_count(site, fresh_process, test_exporters, monkeypatch, tmp_path):
    """instrument() decides nothing: a program may set its variables until its first span."""
    add_library(site, "liba")
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    importlib.invalidate_caches()
    importlib.import_module("liba")
    otel_rollout.instrument()
    assert runs.settings is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_ROLLOUT_INSTRUMENT", "liba")
    call("liba")
    active = recording.runtime
    assert active is not None
    assert active.writer.flush(10)
    assert scopes(read_directory(tmp_path / "spool")) == ["opentelemetry_instrumentation_liba"]


def test_of_two_instrumentors_of_a_library_the_preferred_is_switched_on(site, recorded, caplog):
    """OpenInference's records messages unasked; a distribution's name chooses the other."""
    add_library(site, "liba")
    add_instrumentor(site, "openinference-instrumentation-liba", "liba", groups=OPENINFERENCE)
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    found = [each for each in instrumentors.installed() if each.name == "liba"]
    by_all, by_name, by_distribution = (
        [each.distribution for each in instrumentors.choose(setting, found).instrumentors]
        for setting in ("all", "liba", "opentelemetry_instrumentation_liba")
    )
    assert by_all == by_name == ["openinference-instrumentation-liba"]
    assert by_distribution == ["opentelemetry-instrumentation-liba"]
    instrument("all")
    call("liba")
    assert scopes(recorded()) == ["openinference_instrumentation_liba"]
    assert "liba" not in caplog.text


def test_instrumentors_of_http_clients_are_switched_on_by_name_alone(site):
    """They send ``traceparent`` to public hosts, too, which nobody asks for with ``all``."""
    add_library(site, "requests")
    add_instrumentor(site, "opentelemetry-instrumentation-requests", "requests")
    found = [each for each in instrumentors.installed() if each.name == "requests"]
    assert instrumentors.choose("all", found).instrumentors == []
    assert instrumentors.choose("requests", found).instrumentors == found


def test_one_that_the_application_switched_on_is_kept(site, recorded):
    """Its library gets no second instrumentor."""
    add_library(site, "liba")
    add_instrumentor(site, "openinference-instrumentation-liba", "liba", groups=OPENINFERENCE)
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    importlib.invalidate_caches()
    importlib.import_module("opentelemetry_instrumentation_liba").LibaInstrumentor().instrument()
    instrument("liba")
    call("liba")
    assert scopes(recorded()) == ["opentelemetry_instrumentation_liba"]


def test_two_that_the_application_switched_on_are_named_in_one_warning(site, recorded, caplog):
    """Both record; the line says which to choose from."""
    add_library(site, "liba")
    for name in ("openinference", "opentelemetry"):
        add_instrumentor(site, f"{name}-instrumentation-liba", "liba")
        importlib.invalidate_caches()
        importlib.import_module(f"{name}_instrumentation_liba").LibaInstrumentor().instrument()
    call("liba")
    call("liba")
    assert len(scopes(recorded())) == 4
    assert len(caplog.records) == 1
    for name in ("openinference_instrumentation_liba", "opentelemetry_instrumentation_liba"):
        assert name in caplog.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"body": "raise ValueError('no such seam')"}, "cannot be switched on (ValueError: no such seam)"),
        ({"body": "import missing_module"}, "(ModuleNotFoundError: No module named 'missing_module')"),
        ({"needs": ">=3"}, "is not used: it needs liba>=3, and version 2.0 is installed"),
    ],
    ids=["raises", "too old", "needs another version"],
)
def test_instrumentor_that_cannot_be_switched_on_is_told_in_one_line(site, recorded, caplog, arguments, said):
    """The library and the other instrumentors work."""
    for library in ("liba", "libb"):
        add_library(site, library)
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba", **arguments)
    add_instrumentor(site, "opentelemetry-instrumentation-libb", "libb")
    instrument("liba,libb")
    call("liba")
    call("libb")
    assert scopes(recorded()) == ["opentelemetry_instrumentation_libb"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "opentelemetry-instrumentation-liba 0.5" in record.getMessage()
    assert said in record.getMessage()


def test_instrumentor_without_its_library_is_told(site, tracing, caplog):
    """By name it is told; `all` means all that can be used."""
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    instrument("all")
    assert caplog.text == ""
    otel_rollout.configure(instrument="liba")
    assert "opentelemetry-instrumentation-liba 0.5 is not used: liba is not installed" in caplog.text


def test_unknown_name_is_answered_with_the_closest(site, tracing, caplog):
    """One line, with the names that exist."""
    add_library(site, "langlib")
    add_instrumentor(site, "opentelemetry-instrumentation-langlib", "langlib")
    instrument("langlip")
    (record,) = caplog.records
    assert "no installed instrumentor is called 'langlip'. Did you mean 'langlib'?" in record.getMessage()


def test_unknown_name_beside_all_is_told(site, tracing, caplog):
    """A misspelt name is no smaller mistake beside ``all``."""
    add_library(site, "langlib")
    add_instrumentor(site, "opentelemetry-instrumentation-langlib", "langlib")
    instrument("all,langlip,opentelemetry-instrumentation-langlib")
    (record,) = caplog.records
    assert "no installed instrumentor is called 'langlip'. Did you mean 'langlib'?" in record.getMessage()


def test_nothing_is_switched_on_unasked(site, recorded):
    """Without the setting, what the application has switched on joins, and nothing else."""
    for library in ("liba", "libb"):
        add_library(site, library)
        add_instrumentor(site, f"opentelemetry-instrumentation-{library}", library)
    importlib.invalidate_caches()
    otel_rollout.instrument()
    importlib.import_module("opentelemetry_instrumentation_liba").LibaInstrumentor().instrument()
    call("liba")
    call("libb")
    assert scopes(recorded()) == ["opentelemetry_instrumentation_liba"]
    assert integrations.instrumentors == {}


@pytest.mark.parametrize("word", ["none", "None", "off", "false", "0", " none, "])
def test_word_for_none_switches_nothing_on_without_a_warning(site, tracing, caplog, word):
    """Only the application's own instrumentors count, as with an empty setting."""
    add_library(site, "liba")
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    instrument(word)
    assert integrations.instrumentors == {}
    assert caplog.text == ""


def test_word_for_none_beside_a_name_is_told(site, recorded, caplog):
    """A setting that contradicts itself switches on what it names, and one line says so."""
    add_library(site, "liba")
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    instrument("none,liba")
    call("liba")
    assert scopes(recorded()) == ["opentelemetry_instrumentation_liba"]
    assert "no installed instrumentor is called 'none'" in caplog.text


def test_nothing_is_imported_or_patched_while_tracing_is_off(site):
    """Neither an instrumentor, nor what joins and switches on, nor the SDK; the API stays as it was."""
    add_library(site, "liba")
    add_instrumentor(site, "opentelemetry-instrumentation-liba", "liba")
    program = (
        "import liba, sys\n"
        "from opentelemetry import trace\n"
        "before = trace.ProxyTracer._tracer, trace._set_tracer_provider\n"
        "import otel_rollout\n"
        "otel_rollout.instrument()\n"
        "with otel_rollout.rollout_trace_attr(step=1):\n"
        "    trace.get_tracer('library').start_span('span').end()\n"
        "assert before == (trace.ProxyTracer._tracer, trace._set_tracer_provider)\n"
        "print(*sys.modules)\n"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    paths = os.pathsep.join([str(site), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**variables, "OTEL_ROLLOUT_INSTRUMENT": "all", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    unused = ("opentelemetry.sdk", "opentelemetry_instrumentation", "otel_rollout.integrations")
    assert not [name for name in loaded if name.startswith(unused)]
    assert "otel_rollout.record.recording.joining" not in loaded
