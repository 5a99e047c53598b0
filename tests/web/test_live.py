"""The pages follow a table that is written, replaced, broken or not there yet."""

from __future__ import annotations

import functools
import gc
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from arro3.core import RecordBatch

from otel_rollout.look.web.answers import Answers
from otel_rollout.look.web.live import Live, NotReadyError
from otel_rollout.look.web.snapshot import LIVE_SECONDS, Snapshot, table_origin
from otel_rollout.table.errors import NoTableError
from otel_rollout.table.rows import batch_of
from tests.table.tables import START_NS, root, row, score, written
from tests.viewer.test_conversation import line
from tests.waiting import wait_for
from tests.web.served import Served, hrefs

VISIBLE_SECONDS = 30.0
"""Time after which a trajectory that ended is on the page."""


def count_of(live: Live) -> int:
    """Return the trajectories of the version that is served."""
    with live.snapshot() as snapshot:
        return sum(row.figures["trajectories"] for row in snapshot.runs)


def test_trajectories_of_a_running_job_appear(tmp_path: Path) -> None:
    """A process appends commits; each is on the page soon, without a restart."""
    table = tmp_path / "table"
    written(table, [root("1", run_id="run-first", start_ns=START_NS - 1)])
    with Served(table, tmp_path) as server:
        assert "run-first" in server.get("/").text
        program = [sys.executable, "-m", "tests.table.programs.append_rows"]
        command = [*program, table, "second", "3", "5", time.time_ns()]
        subprocess.run(list(map(str, command)), check=True, timeout=120)
        wait_for(
            lambda: (
                "first · run-second recent" in server.get("/").text
                and server.get("/trajectories?run=run-second").body.count('class="state ok"') == 15
            ),
            VISIBLE_SECONDS,
            "the trajectories of the second run",
        )
        page = server.get("/")
        assert '<meta http-equiv="refresh" content="5">' in page.body
        listed = server.get("/trajectories?run=run-second&refresh=on")
        assert '<meta http-equiv="refresh" content="5">' in listed.body
        assert "refresh=off" in listed.body
        assert '<meta http-equiv="refresh"' not in server.get("/trajectories?run=run-second").body


def test_run_is_live_while_its_own_spans_are_new(tmp_path: Path) -> None:
    """A killed run whose trajectory never ended is not, though another run writes to the table now."""
    now = time.time_ns()
    hour_ago = now - 3_600_000_000_000
    killed = row("2", "b2", "a2", name="generate", run_id="run-killed", start_ns=hour_ago)
    judged = score("2", "c2", 1.0, run_id="run-killed", start_ns=now)
    running = row("3", "b3", "a3", name="generate", run_id="run-newest", start_ns=now)
    ended = root("4", run_id="run-earlier", sample_index="8", start_ns=hour_ago - 1)
    still = row("5", "b5", "a4", name="generate", run_id="run-earlier", start_ns=now)
    live = Live(table_origin(written(tmp_path / "table", [killed, judged, running, ended, still])), period=60)
    live.start()
    try:
        with live.snapshot() as snapshot:
            are_live = {each.run.run_id: each.is_live(now / 1e9) for each in snapshot.runs}
            assert are_live == {"run-newest": True, "run-killed": False, "run-earlier": True}
            assert not any(each.is_live(now / 1e9 + LIVE_SECONDS) for each in snapshot.runs)
    finally:
        live.stop()


def test_trajectory_that_begins_is_on_the_page_of_a_spool(tmp_path: Path) -> None:
    """Though no file of the spool grows until something of it ends."""
    spool = tmp_path / "spool"
    record = "import sys, otel_rollout as o; o.configure('spool', spool_dir=sys.argv[1])\n"
    record += "for n in range(3):\n"
    record += "    with o.rollout_trace_attr(step=1, sample_index=7, rollout_n=n): sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", record, spool], stdin=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
        wait_for(lambda: list(spool.rglob("*.jsonl")), what="the run")
        with Served(spool, tmp_path) as server:
            for number in (1, 2):
                seen = re.compile(rf"1/7/{number} .*running")
                wait_for(
                    functools.partial(lambda seen: seen.search(server.get("/trajectories").text), seen),
                    VISIBLE_SECONDS,
                    "the running trajectory",
                )
                job.stdin.write("\n")
                job.stdin.flush()


def test_table_that_comes_later_is_shown(tmp_path: Path) -> None:
    """The server may start before the training does, and outlives the table."""
    table = tmp_path / "table"
    with Served(f"file://{table}", tmp_path) as server:
        assert f"There is no table at {table}." in server.output
        answer = server.get("/")
        assert (answer.status, answer.body.count('http-equiv="refresh"')) == (503, 1)
        assert f"There is no table at {table}." in answer.text
        written(table, [root("1")])
        wait_for(lambda: server.get("/").status == 200, 30, "the page of the table")
        shutil.rmtree(table)
        gone = wait_for(
            lambda: answer if "after it begins. (since" in (answer := server.get("/")).text else None,
            30,
            "the sentence about the missing table",
        )
        assert gone.status == 200
        assert "first · run-1" in gone.text
        missing = server.get("/trajectory?name=1/7/0")
        assert missing.status == 404
        assert "A file of the table is missing" in missing.text
        written(table, [root("2"), root("3", sample_index="8")])
        wait_for(lambda: "There is no table" not in server.get("/").text, 30, "the new table")
        assert server.get("/trajectory?name=1/8/0").status == 200
        assert "Traceback" not in server.output


def test_table_that_breaks_is_a_sentence(tmp_path: Path) -> None:
    """A damaged log leaves the older version on the pages."""
    store = written(tmp_path / "table", [root("1")])
    live = Live(table_origin(store), period=0.05)
    live.start()
    try:
        log = tmp_path / "table" / "_delta_log"
        (log / f"{2:020}.json").write_text("{broken", encoding="utf-8")
        problem = wait_for(lambda: live.problem, 30, "the problem")
        assert "is damaged: its log, in _delta_log, cannot be read" in problem
        assert count_of(live) == 1
        (log / f"{2:020}.json").unlink()
        wait_for(lambda: not live.problem, 30, "the end of the problem")
    finally:
        live.stop()


def test_replaced_versions_are_released(tmp_path: Path) -> None:
    """A version is kept while a request uses it, and no longer."""
    store = written(tmp_path / "table", [root("1")])
    live = Live(table_origin(store), period=0.01)
    live.start()
    try:
        seen: list[weakref.ref[Snapshot]] = []
        with live.snapshot() as first:
            for number in range(2, 6):
                store.append([_batch(number)], "tests", number)
                wait_for(lambda number=number: count_of(live) == number, 30, "the next version")
                with live.snapshot() as snapshot:
                    seen.append(weakref.ref(snapshot))
            assert first.rows("SELECT count(*) AS number FROM trajectories") == [{"number": 1}]
        del first, snapshot

        def released() -> bool:
            gc.collect()
            return [reference() is None for reference in seen] == [True, True, True, False]

        wait_for(released, 30, "the release of the replaced versions")
    finally:
        live.stop()
    with pytest.raises(NotReadyError), live.snapshot():
        pass


def _batch(number: int) -> RecordBatch:
    return batch_of([root(str(number), sample_index=str(number))])


def test_slow_answers_are_renewed_beside_requests(tmp_path: Path) -> None:
    """A result of an older version is given at once while the newer one is computed, once."""
    store = written(tmp_path / "table", [root("1")])
    live = Live(table_origin(store), period=0.01)
    live.start()
    answers = Answers(live)
    may_end, calls = threading.Event(), []

    def counted(snapshot: Snapshot) -> int:
        calls.append(snapshot.version)
        assert may_end.wait(60)
        return int(snapshot.rows("SELECT count(*) AS number FROM trajectories")[0]["number"])

    def asked(patience: float) -> int | None:
        with live.snapshot() as snapshot:
            answer = answers.get("count", counted, snapshot.version, patience)
        return None if answer is None else answer.value

    try:
        assert asked(0.01) is None
        may_end.set()
        assert asked(60) == 1
        may_end.clear()
        store.append([_batch(2)], "tests", 2)
        wait_for(lambda: count_of(live) == 2, 30, "the next version")
        assert [asked(60) for _ in range(5)] == [1] * 5
        wait_for(lambda: len(calls) == 2, 30, "the computation")
        may_end.set()
        wait_for(lambda: asked(60) == 2, 30, "the newer result")
        assert len(calls) == 2
    finally:
        may_end.set()
        live.stop()


def test_failed_answer_is_its_error(tmp_path: Path) -> None:
    """An error of a computation is the answer's problem, and the next version may succeed."""
    live = Live(table_origin(written(tmp_path / "table", [root("1")])), period=60)
    live.start()
    answers = Answers(live)

    def failing(snapshot: Snapshot) -> None:
        raise NoTableError("It is gone.")

    try:
        answer = answers.get("key", failing, 1, 60)
        assert answer is not None
        assert isinstance(answer.problem, NoTableError)
    finally:
        live.stop()


def test_spool_is_followed(tmp_path: Path) -> None:
    """Lines that are added to a file of OTLP JSON are shown as well."""
    file = tmp_path / "spans.jsonl"
    first = line(1, "question", "answer", parent=0, kind="AGENT", name="agent_loop")
    file.write_bytes(first + b"\n")
    (tmp_path / "temporary").mkdir()
    with Served(file, tmp_path, environ={"TMPDIR": str(tmp_path / "temporary")}) as server:
        assert len(hrefs(server.get("/trajectories"), "/trajectory?")) == 1
        with file.open("ab") as opened:
            opened.write(first.replace(f"{1:032x}".encode(), f"{2:032x}".encode()) + b"\n")
        wait_for(
            lambda: len(hrefs(server.get("/trajectories"), "/trajectory?")) == 2, 60, "the second trajectory"
        )
        wait_for(
            lambda: len(list(tmp_path.glob("temporary/otel-rollout-query-*"))) == 1,
            30,
            "the end of the older table",
        )
        server.end()
    assert not list(tmp_path.glob("temporary/otel-rollout-query-*"))
