"""A short program that delivers into MLflow's SQLite file ends soon."""

from benchmarks.first_run import seconds_to_exit
from otel_rollout_mlflow import MlflowSpanExporter

FIRST_SECONDS = 30
SECOND_SECONDS = 20
"""Bounds for a busy machine; `python -m benchmarks.first_run` measures."""


def test_short_program_ends_soon_with_a_new_and_an_old_database(tmp_path):
    """The exit waits for nothing but MLflow's own start."""
    assert seconds_to_exit(tmp_path) < FIRST_SECONDS
    assert seconds_to_exit(tmp_path) < SECOND_SECONDS


def test_new_database_is_synchronized_to_disk_once(tmp_path, monkeypatch):
    """MLflow's migrations take 500 transactions, 6 s at 5 ms each."""
    import sqlite3

    statements = []
    connect = sqlite3.connect

    def traced(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr("sqlite3.dbapi2.connect", traced)
    exporter = MlflowSpanExporter(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    exporter.prepare()
    assert exporter.check() is None
    exporter.shutdown()
    created = next(i for i, statement in enumerate(statements) if "CREATE TABLE" in statement)
    assert "PRAGMA synchronous=OFF" in statements[:created]
    with connect(tmp_path / "mlflow.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_prepare_with_an_unreachable_target_is_silent(caplog):
    """The first export reports the failure."""
    exporter = MlflowSpanExporter(tracking_uri="http://127.0.0.1:1", timeout=1)
    exporter.prepare()
    exporter.shutdown()
    assert exporter.last_failure is None
    assert caplog.records == []
