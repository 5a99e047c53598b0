"""A table in an object store is as exact as one in a directory: a real server, real processes, real kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rollout.exporting.api import FailureKind
from otel_rollout_delta import DeltaSpanExporter
from tests.delta import s3_server
from tests.delta.losing_proxy import losing_answers
from tests.delta.reading import counted, expected_rows, rows_in
from tests.delta.test_exactly_once import start_forwarder
from tests.delta.test_problems import export
from tests.faults.forwarding import forward, node_directory, record_and_die
from tests.faults.inside import DEATHS_COMMITTING
from tests.table.exactness import compact_beside_writers, kill_at_every_point
from tests.table.test_stored_rows import HISTORY, check_history
from tests.waiting import wait_for

OTEL_ROLLOUT = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
BUCKET = f"s3://{s3_server.BUCKET}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    """The variables of a server for all tests, and the directory of its bucket."""
    directory = tmp_path_factory.mktemp("s3") / "objects"
    with s3_server.running(directory) as variables:
        yield variables, directory / s3_server.BUCKET


@pytest.fixture
def objects(server: tuple[dict[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the server's variables; return the directory of its bucket."""
    for name, value in server[0].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # for deltalake without the code under test
    return server[1]


@pytest.fixture
def written(variables: dict[str, str], server: tuple[dict[str, str], Path], objects: Path) -> dict[str, str]:
    """Return the environment of a process that records for a table in the bucket."""
    return {**variables, **server[0], "OTEL_ROLLOUT_DELTA_URI": f"{BUCKET}/table"}


def assert_exact(uri: str, spool: Path, count: int) -> None:
    """Check that a table has the rows of the spool's lines, each once."""
    expected = counted(expected_rows(spool))
    assert sum(expected.values()) == count
    assert counted(rows_in(uri)) == expected


def test_forwarder_killed_at_every_point_of_a_commit_writes_each_row_once(
    written: dict[str, str], objects: Path, tmp_path: Path
) -> None:
    """SIGKILL comes while the store writes rows and the log's entry, too."""
    written |= {"OTEL_ROLLOUT_DELTA_URI": f"{BUCKET}/killed", "OTEL_TEST_TABLE": str(objects / "killed")}
    node_dir = node_directory(written)
    recorded = record_and_die(written, node_dir, count=60)
    report = forward(written, node_dir, DEATHS_COMMITTING)
    assert (report.exporters["delta"].delivered, report.lost) == (len(recorded), 0)
    assert_exact(f"{BUCKET}/killed", tmp_path / "spool", len(recorded))


def test_two_forwarders_of_which_one_is_killed_write_each_row_once(
    written: dict[str, str], tmp_path: Path
) -> None:
    """Neither has begun the table; the killed one is started again."""
    uri = written["OTEL_ROLLOUT_DELTA_URI"] = f"{BUCKET}/two"
    node_dirs, recorded = [], 0
    for number in range(2):
        node_dirs.append(node_directory(written, f"node-{number}"))
        recorded += len(record_and_die(written, node_dirs[-1], count=40))
    forwarders = [start_forwarder(written, node_dir) for node_dir in node_dirs]
    wait_for(lambda: forwarders[0].poll() is not None or has_rows(uri), 240)
    forwarders[0].kill()
    forwarders[0].wait(10)
    assert forwarders[1].wait(300) == 0
    assert start_forwarder(written, node_dirs[0]).wait(300) == 0
    assert_exact(uri, tmp_path / "spool", recorded)


def has_rows(uri: str) -> bool:
    """Whether a table has rows of several commits."""
    from deltalake.exceptions import TableNotFoundError

    try:
        return len(rows_in(uri, ["name"])) > 14
    except TableNotFoundError:
        return False


@pytest.mark.parametrize("runs", [(), ("run-a",)], ids=["compact", "prune"])
def test_process_killed_at_every_point_leaves_the_rows_exact(
    objects: Path, tmp_path: Path, runs: tuple[str, ...]
) -> None:
    """Compactions and prunings; the next process takes the lease over."""
    name = f"replaced-{len(runs)}"
    kill_at_every_point(f"{BUCKET}/{name}", objects / name, tmp_path, runs)


@pytest.mark.usefixtures("objects")
def test_two_compactors_at_once_beside_writers_keep_the_rows_exact(tmp_path: Path) -> None:
    """The lease is an entry of the table's log, which the store writes once."""
    compact_beside_writers(f"{BUCKET}/compacted", tmp_path, writers=4, commits=8)


@pytest.mark.usefixtures("objects")
def test_views_with_stored_trajectories_are_those_of_all_spans() -> None:
    """The credentials of the table are those of the rows below it."""
    check_history(f"{BUCKET}/trajectories", HISTORY)


@pytest.mark.usefixtures("objects")
def test_lost_answers_to_commits_change_no_row(written: dict[str, str], tmp_path: Path) -> None:
    """The store writes each entry of the log, and the connection ends before its first answer."""
    uri = written["OTEL_ROLLOUT_DELTA_URI"] = f"{BUCKET}/lost"
    node_dir = node_directory(written)
    recorded = record_and_die(written, node_dir, count=20)
    with losing_answers(written["AWS_ENDPOINT_URL"]) as (url, lost):
        report = forward({**written, "AWS_ENDPOINT_URL": url}, node_dir)
        commits = len(lost)
        # In another process than the proxy: deltalake holds Python's lock while it reads from the store.
        command = [*OTEL_ROLLOUT, "table", "compact", uri, "--retention", "0h"]
        variables = {**written, "AWS_ENDPOINT_URL": url}
        ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
        assert " became 1 " in ran.stdout, ran.stdout + ran.stderr
    assert commits >= len(recorded) / 7
    assert len(lost) > commits
    assert (report.exporters["delta"].delivered, report.lost) == (len(recorded), 0)
    assert_exact(uri, tmp_path / "spool", len(recorded))


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    ("variables", "bucket", "sentence", "kind"),
    [
        ({}, "nowhere", "The bucket nowhere does not exist: check the address", FailureKind.REFUSED),
        (
            {"AWS_SECRET_ACCESS_KEY": "x"},
            s3_server.BUCKET,
            "No permission for the table",
            FailureKind.REFUSED,
        ),
        (
            {"AWS_ACCESS_KEY_ID": "x"},
            s3_server.BUCKET,
            "No user exists with the prov",
            FailureKind.UNAVAILABLE,
        ),
    ],
)
def test_store_that_refuses_is_named(
    variables: dict[str, str],
    bucket: str,
    sentence: str,
    kind: FailureKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bucket that is not there, and keys that are wrong; versitygw has a code of its own for the last."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    failure = export(DeltaSpanExporter(uri=f"s3://{bucket}/table"))
    assert failure is not None
    assert sentence in failure.message
    assert "<" not in failure.message
    assert failure.kind is kind
