"""Optional abilities are looked up by `isinstance`, in any exporter."""

from __future__ import annotations

import logging
import threading

import pytest
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from otel_rollout.exporting import api
from otel_rollout.exporting.api import FailureKind, UndeliveredError, reads_spool
from otel_rollout.exporting.base import GuardedExporter, needing
from otel_rollout.exporting.entry_points import load
from otel_rollout.exporting.spool_exporter import KeptInSpool
from tests.waiting import wait_for

ABILITIES = {
    name: ability
    for name, ability in vars(api).items()
    if isinstance(ability, type)
    and getattr(ability, "_is_protocol", False)
    and ability.__module__ == api.__name__
}
OWN = {
    "mlflow": {
        *("Announces", "Checks", "LinksRuns", "MayBeLocal", "NamesDestination", "Prepares"),
        *("LogsMetrics", "ResolvesIdentities"),
    },
    "delta": {"Checks", "CommitsBatches", "MayBeLocal", "NamesDestination", "Prepares", "WritesTable"},
    "weave": {"Announces", "Checks", "LinksRuns", "NamesDestination", "ResolvesIdentities"},
    "otlp": {"Checks", "ExportsLines", "NamesDestination"},
    "spool": {"Checks", "ExportsLines", "NamesDestination", "ReadsSpool"},
}
OPTIONS = {"mlflow": {"tracking_uri": "http://127.0.0.1:1"}, "weave": {"api_key": "k" * 40}}


def abilities_of(exporter: SpanExporter) -> set[str]:
    return {name for name, ability in ABILITIES.items() if isinstance(exporter, ability)}


@pytest.mark.parametrize("name", ["mlflow", "delta", "weave", "otlp"])
def test_own_exporter_has_its_abilities(name):
    """Each exporter has the abilities that it is documented to have, and no other."""
    exporter = load(name, OPTIONS.get(name, {}))
    assert abilities_of(exporter) == OWN[name]
    exporter.shutdown()


def test_spool_exporter_says_that_another_program_reads():
    """Segments stay only for an exporter that says so."""
    assert abilities_of(KeptInSpool()) == OWN["spool"]
    assert reads_spool(KeptInSpool())
    assert not reads_spool(ConsoleSpanExporter())


def test_plain_exporter_has_no_ability():
    """A foreign exporter works without any optional ability."""
    assert abilities_of(ConsoleSpanExporter()) == set()


def test_ability_that_is_none_is_no_ability():
    """A subclass may take an ability away."""

    class Decoding(KeptInSpool):
        export_lines = None  # type: ignore[assignment]

    assert abilities_of(Decoding()) == OWN["spool"] - {"ExportsLines"}


class Failing(GuardedExporter):
    """An exporter that raises a given exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__("Failing")
        self._error = error

    def write(self, spans):
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), RecursionError(), KeyError("x")])
def test_unexpected_error_is_an_outage(error):
    """No exception leaves `export`: the spans are kept and sent again."""
    exporter = Failing(error)
    assert exporter.export([]) is SpanExportResult.FAILURE
    assert exporter.last_failure is not None
    assert exporter.last_failure.kind is FailureKind.UNAVAILABLE
    assert type(error).__name__ in exporter.last_failure.message


def test_logging_handler_that_raises_harms_nothing():
    """A handler of the application that fails does not fail the export."""

    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("no space left")

    logger, handler = logging.getLogger(__name__), Broken()
    logger.addHandler(handler)
    try:
        exporter = Failing(UndeliveredError(FailureKind.REFUSED, "no"))
        assert exporter.export([]) is SpanExportResult.FAILURE
        assert exporter.last_failure is not None
    finally:
        logger.removeHandler(handler)


def test_span_that_ends_during_an_export_is_exported_by_the_same_thread():
    """A finalizer or a signal handler may interrupt an export and end a span: neither export waits."""
    exported = []

    class Interrupted(GuardedExporter):
        def write(self, spans):
            exported.extend(spans)
            if spans == ["outer"]:
                assert self.export(["inner"]) is SpanExportResult.SUCCESS

    exporter = Interrupted("Interrupted")
    thread = threading.Thread(target=exporter.export, args=(["outer"],), daemon=True)
    thread.start()
    wait_for(lambda: not thread.is_alive(), 20, "the end of the export")
    assert exported == ["outer", "inner"]
    assert exporter.last_failure is None


def test_missing_package_is_named_with_the_extra_that_brings_it():
    """The error about a missing module of this package stays unchanged."""
    with (
        pytest.raises(ModuleNotFoundError, match=r"'no_such_package': pip install 'otel-rollout\[weave\]'"),
        needing("weave"),
    ):
        import no_such_package  # noqa: F401
    with (
        pytest.raises(ModuleNotFoundError, match=r"^No module named 'otel_rollout\.nothing'"),
        needing("weave"),
    ):
        import otel_rollout.nothing  # noqa: F401
