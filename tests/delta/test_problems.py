"""What stands in the way of a table is one clear sentence, and nothing is done."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from arro3.core import Array, DataType, RecordBatch, Table
from deltalake import DeltaTable, write_deltalake
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import ExportFailure, FailureKind, UndeliveredError
from otel_rollout.exporting.entry_points import load
from otel_rollout.settings import SettingsError
from otel_rollout.table.errors import TableError, described
from otel_rollout.table.location import location_of
from otel_rollout_delta import DeltaSpanExporter
from tests.sdk_spans import Rollouts


def export(exporter: DeltaSpanExporter, number: int = 1) -> ExportFailure | None:
    """Commit a trajectory; return the failure."""
    rollouts = Rollouts("p")
    rollouts.trajectory()
    result = exporter.commit(rollouts.ended(), "writer", number)
    assert (result is SpanExportResult.SUCCESS) == (exporter.last_failure is None)
    return exporter.last_failure


def newer(table: Path) -> str:
    DeltaTable(str(table)).alter.set_table_properties(
        {"rollout.schema_version": "2"}, raise_if_not_exists=False
    )
    return "has version 2 of the columns, and this software knows version 1: update otel-rollout."


def half_written(table: Path) -> str:
    log = sorted((table / "_delta_log").glob("*.json"))[-1]
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    return "is damaged: its log, in _delta_log, cannot be read"


def without_beginning(table: Path) -> str:
    (table / "_delta_log" / f"{0:020}.json").unlink()
    return "is damaged"


def with_other_types(table: Path) -> str:
    version = f"{0:020}.json"
    log = table / "_delta_log" / version
    for later in table.glob("_delta_log/*.json"):
        if later.name != version:
            later.unlink()
    old, new = '\\"name\\":\\"step\\",\\"type\\":\\"long\\"', '\\"name\\":\\"step\\",\\"type\\":\\"string\\"'
    assert old in log.read_text()
    log.write_text(log.read_text().replace(old, new))
    return "Column step of the table"


def of_another_program(table: Path) -> str:
    for path in sorted(table.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    write_deltalake(str(table), Table.from_batches([RecordBatch({"x": Array([1], DataType.int64())})]))
    return "is no rollout table: name another address."


@pytest.mark.parametrize(
    "spoil", [newer, half_written, without_beginning, with_other_types, of_another_program]
)
def test_table_that_cannot_be_written_is_refused(tmp_path: Path, spoil: Callable[[Path], str]) -> None:
    """A person has to act; the table's files stay as they are."""
    table = tmp_path / "table"
    exporter = DeltaSpanExporter(uri=str(table))
    assert export(exporter) is None
    sentence = spoil(table)
    before = {path: path.read_bytes() for path in table.rglob("*") if path.is_file()}
    failure = export(exporter, 2)
    assert failure is not None
    assert failure.kind is FailureKind.REFUSED
    assert sentence in failure.message
    assert str(table) in failure.message
    assert "\n" not in failure.message
    assert len(failure.message) < 400
    assert exporter.check() == failure
    with pytest.raises(UndeliveredError) as raised:
        exporter.committed("writer")
    assert raised.value.failure == failure
    assert {path: path.read_bytes() for path in table.rglob("*") if path.is_file()} == before


def test_file_and_full_directory_are_no_tables(tmp_path: Path) -> None:
    """Neither is written to."""
    (tmp_path / "notes.txt").write_text("mine")
    for uri, sentence in (
        (tmp_path / "notes.txt", "is a file, and no table: name a directory."),
        (tmp_path, "holds 'notes.txt' and no table"),
    ):
        failure = export(DeltaSpanExporter(uri=str(uri)))
        assert failure is not None
        assert failure.kind is FailureKind.REFUSED
        assert sentence in failure.message
    assert [path.name for path in tmp_path.iterdir() if path.name != "spool"] == ["notes.txt"]


def test_remains_of_a_table_that_was_never_begun_are_no_obstacle(tmp_path: Path) -> None:
    """A process that was killed while it began the table leaves rows, and an empty log or none."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "part-00000-x.parquet").touch()
    for name in ("table", "rows"):
        exporter = DeltaSpanExporter(uri=str(tmp_path / name))
        assert exporter.check() is None
        assert export(exporter) is None
        assert exporter.committed("writer") == 1
        assert exporter.committed("another") is None


_AS_NOBODY = """
import os, sys
from opentelemetry.sdk.trace import ReadableSpan
from otel_rollout_delta import DeltaSpanExporter
from tests.delta.test_problems import export
import deltalake, arro3.core, otel_rollout.table.store
os.setgid(65534)
os.setuid(65534)
for uri in sys.argv[1:]:
    exporter = DeltaSpanExporter(uri=uri)
    failure = export(exporter)
    print(failure.kind.value, failure.message, flush=True)
    print(exporter.check(), flush=True)
"""


def test_directory_of_another_user_is_refused(open_to_all: Path) -> None:
    """Whether the table exists or not, and whether it can be read or not."""
    for name in ("read-only", "closed"):
        assert export(DeltaSpanExporter(uri=str(open_to_all / name / "table"))) is None
        (open_to_all / name / "table").chmod(0o755)
    open_to_all.chmod(0o755)
    (open_to_all / "closed").chmod(0o700)
    tables = [open_to_all / "read-only" / "table", open_to_all / "closed" / "table", open_to_all / "new"]
    command = [sys.executable, "-c", _AS_NOBODY, *map(str, tables)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for table, line in zip(tables, done.stdout.splitlines()[::2], strict=True):
        assert line.startswith("refused No ")
        assert str(table) in line
        assert "ermission" in line


class _Store(BaseHTTPRequestHandler):
    """An object store that answers every request with one status and code."""

    status = 404
    code = "NoSuchBucket"

    def do_GET(self) -> None:
        body = f"<Error><Code>{self.code}</Code><Message>says the test</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_PUT = do_HEAD = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def store(status: int, code: str) -> Iterator[str]:
    """Serve a store; its URL."""
    handler = type("Handler", (_Store,), {"status": status, "code": code})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that no store knows."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")


@pytest.mark.parametrize(
    ("status", "code", "kind", "sentence"),
    [
        (404, "NoSuchBucket", FailureKind.REFUSED, "The bucket nowhere does not exist"),
        (403, "AccessDenied", FailureKind.REFUSED, "No permission for the table at s3://nowhere/table"),
        (403, "InvalidAccessKeyId", FailureKind.REFUSED, "No permission"),
        (403, "SignatureDoesNotMatch", FailureKind.REFUSED, "No permission"),
    ],
)
@pytest.mark.usefixtures("credentials")
def test_object_store_that_refuses(
    status: int, code: str, kind: FailureKind, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket or the credentials are wrong; no message has a secret."""
    with store(status, code) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        failure = export(DeltaSpanExporter(uri="s3://nowhere/table"))
    assert failure is not None
    assert sentence in failure.message
    assert failure.kind is kind
    assert "planted-secret" not in failure.message


@pytest.mark.usefixtures("credentials")
def test_object_store_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forwarder tries again."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    failure = export(DeltaSpanExporter(uri="s3://nowhere/table"))
    assert failure is not None
    assert failure.kind is FailureKind.UNAVAILABLE
    assert "s3://nowhere/table" in failure.message


def test_panic_of_deltalake_is_a_failure_like_any_other() -> None:
    """Its exception is no ``Exception``, and must not end a delivery."""
    panic = type("PanicException", (BaseException,), {})
    problem = described(panic("index out of bounds"), location_of("/t"))
    assert isinstance(problem, TableError)
    assert problem.is_temporary


@pytest.mark.parametrize("uri", ["s3://", "s3://bucket", "ftp://host/path", "s3://key:secret@bucket/path"])
def test_malformed_address_is_a_settings_error(uri: str) -> None:
    """The message names argument or variable, and what is expected."""
    with pytest.raises(SettingsError, match=r"uri= is .*; expected a directory, or s3://BUCKET/PATH"):
        load("delta", {"uri": uri})


def test_address_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument wins over the variable, and that over ``rollouts`` in the working directory."""
    monkeypatch.chdir(tmp_path)
    assert DeltaSpanExporter().destination("p") == f"the table at {tmp_path}/rollouts"
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", "file:///some%20where/t")
    assert DeltaSpanExporter().destination("p") == "the table at /some where/t"
    given = DeltaSpanExporter(uri="s3://bucket/path/")
    assert given.destination("p") == "the table at s3://bucket/path"
    assert not given.target_is_local
