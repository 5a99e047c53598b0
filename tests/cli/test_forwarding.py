"""Forwarding by hand: replay of files, and forwarding as a service."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import otel_rollout
from otel_rollout import rollout_trace_attr, settings
from otel_rollout.cli.forwarding import Service
from otel_rollout.launch import launcher
from otel_rollout.spool import files, layout
from tests.forwarder.test_delivery import delivered, node_directory, record
from tests.waiting import wait_for

COMMAND = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
ON_A_TERMINAL = [  # what a shell starts in the background ignores Ctrl-C, and so do its children
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from otel_rollout.cli import app; app()",
]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


@pytest.fixture
def kept(fresh_process: None, test_exporters: None, tmp_path: Path) -> Path:
    """The node directory of a finished run with an archive of 31 spans in several segments."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "first")}}, segment_bytes=5000)
    for _ in range(3):
        record(9)
        otel_rollout.runtime.current().writer.flush(10)  # type: ignore[attr-defined]
    otel_rollout.shutdown(30)
    node_dir = node_directory(tmp_path)
    wait_for(lambda: not launcher.forwarder_runs(node_dir), what="the forwarder's end")
    return node_dir


def run(*arguments: object, code: int = 0) -> str:
    ran = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_replay_of_a_kept_run(kept: Path, target: Path, tmp_path: Path) -> None:
    """The archive of a run is delivered again, all of it, and nothing of the replay stays behind."""
    assert "test-file: 30 lines delivered, 0 rejected, 0 pending" in run("replay", kept, "--to", "test-file")
    assert sum(delivered(target).values()) == 30
    assert delivered(target) == delivered(tmp_path / "first")
    assert layout.node_directories(tmp_path / "spool") == [kept]


def test_replay_of_lines_of_other_tools(target: Path, test_exporters: None, tmp_path: Path) -> None:
    """Any file of OTLP JSON Lines will do, several spans in a line, the last without an end."""
    span = '{"traceId":"%032x","spanId":"%016x","name":"s","startTimeUnixNano":"1","endTimeUnixNano":"2"}'
    pair = ",".join(span % (7, n) for n in (1, 2))
    line = '{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}'
    (tmp_path / "traces.json").write_text(line % pair + "\n" + line % (span % (7, 3)))
    assert "2 lines delivered" in run("replay", tmp_path / "traces.json", "--to", "test-file")
    assert {span_id for span_id, _ in delivered(target)} == {f"{n:016x}" for n in (1, 2, 3)}


def test_replay_of_what_was_set_aside(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """Spans that one target refused are delivered to it, or another, once it takes them."""
    otel_rollout.configure({"test-faulty": {"path": str(tmp_path / "first")}})
    record(3)
    record(1, name="poison")
    otel_rollout.shutdown(30)
    rejected = node_directory(tmp_path) / "rejected.test-faulty.jsonl"
    assert "1 lines delivered, 0 rejected" in run("replay", rejected, "--to", "test-file")
    assert [name for _, name in delivered(target)] == ["poison"]


def test_what_cannot_be_replayed_is_said(target: Path, test_exporters: None, tmp_path: Path) -> None:
    """A file that is missing, a directory without segments, nobody to deliver, lines that are none.

    Only the last, which are set aside, leave a run behind.
    """
    assert "No such file" in run("replay", tmp_path / "missing", "--to", "test-file", code=2)
    (tmp_path / "empty").mkdir()
    assert "holds no segments" in run("replay", tmp_path / "empty", "--to", "test-file", code=2)
    (tmp_path / "text").write_text("hello\n")
    assert "no span exporter is called 'nobody'" in run("replay", tmp_path / "text", "--to", "nobody", code=2)
    assert "Nothing was recorded" in run("status", code=1)
    assert "0 lines delivered, 1 rejected" in run("replay", tmp_path / "text", "--to", "test-file", code=1)
    assert "replay-" in run("status")


def test_replay_of_a_device_is_refused(target: Path, test_exporters: None, tmp_path: Path) -> None:
    """A device may have no end: it is not copied, and no run is left behind."""
    assert "/dev/zero is a device, not a file" in run("replay", "/dev/zero", "--to", "test-file", code=2)
    assert "Nothing was recorded" in run("status", code=1)


def test_show_says_that_a_pipe_is_no_file(tmp_path: Path) -> None:
    """The pipe is there, and may have no writer; it is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    said = run("show", "--from", tmp_path / "pipe", code=2)
    assert f"{tmp_path}/pipe is neither a file nor a directory" in said


def test_a_file_of_other_lines_is_rejected_in_few_words(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """Of many rejected lines ten are logged; the dead-letter file has all."""
    (tmp_path / "text").write_text("hello\n" * 500)
    said = run("replay", tmp_path / "text", "--to", "test-file", code=1)
    assert said.count("rejects a span") == 10
    (dead_letters,) = tmp_path.rglob("rejected.test-file.jsonl")
    assert said.count(f"written to {dead_letters} only") == 1
    assert len(dead_letters.read_text().splitlines()) == 500


@pytest.mark.parametrize("arguments", [("status",), ("status", "--json"), ("show",), ("doctor",)])
def test_output_that_finds_no_room_is_said_in_one_line(kept: Path, arguments: tuple[str, ...]) -> None:
    """Redirected to a full disk, a command ends with one line and status 2."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ran.returncode == 2
    assert ran.stderr == "The output cannot be written: No space left on device\n"


def test_a_status_in_80_columns_has_whole_headings(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of most terminals is enough for every word, and a width of 0 counts as unknown."""
    for columns in ("80", "0"):
        monkeypatch.setenv("COLUMNS", columns)
        said = run("status", "--steps")
        table = [line for line in said.splitlines() if line[:1] in ("┏", "┃", "│")]
        assert max(map(len, table)) <= 80
        for heading in ("recorded", "delivered", "rejected", "pending", "unfinished", "retried"):
            assert heading in said


def test_a_command_line_that_cannot_be_done_is_refused(kept: Path) -> None:
    """Options that exclude each other, and names that are none."""
    assert "--watch is for people" in run("status", "--json", "--watch", code=2)
    assert "names no exporter" in run("forward", "--to", " , ", code=2)
    assert "0 pending" in run("forward", "--to", "test-file,")


@given(
    entry=st.binary(max_size=9)
    | st.sampled_from([b"{}", b"[]", b"null", b"1", b'{"line": null}', b'{"line": 5}'])
)
def test_no_entry_of_a_dead_letter_file_stops_the_reader_otherwise(entry: bytes) -> None:
    """Whatever it holds: a recorded line, or a ValueError that names the file and the line."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rejected.test-file.jsonl"
        path.write_bytes(b'{"line": "{}"}\n' + entry.replace(b"\n", b""))
        lines = files.lines_of(path)
        assert next(lines) == b"{}\n"
        problem = f"{path}, line 2: "
        try:
            assert all(line.endswith(b"\n") for line in lines)
        except ValueError as error:
            problem = str(error)
        assert problem.startswith(f"{path}, line 2: ")


def test_an_entry_that_is_no_rejected_span_is_named(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """Its file and line are said, nothing is delivered, and no run stays behind."""
    path = tmp_path / "rejected.test-file.jsonl"
    path.write_bytes(b'{"line": "{}"}\n{}\n')
    assert f"cannot replay: {path}, line 2:" in run("replay", path, "--to", "test-file", code=2)
    assert not target.exists()
    assert layout.node_directories(tmp_path / "spool") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_replay_that_is_interrupted_leaves_no_run(
    target: Path, test_exporters: None, tmp_path: Path, number: signal.Signals
) -> None:
    """Copies of files are no run before they are complete; Ctrl-C and SIGTERM remove them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [*ON_A_TERMINAL, "replay", pipe, "--to", "test-file"]
    with subprocess.Popen(command) as process, pipe.open("wb"):
        wait_for(lambda: list((tmp_path / "spool").glob("replay-*/*/*.jsonl")), what="the copy")
        assert layout.node_directories(tmp_path / "spool") == []
        process.send_signal(number)
        process.wait(60)
    assert process.returncode not in (0, None)
    assert layout.node_directories(tmp_path / "spool") == []
    assert bool(list((tmp_path / "spool").iterdir())) == (number == signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_replay_that_is_interrupted_while_it_delivers_leaves_no_run(
    kept: Path, target: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """What it replays is still where it was, so `status` answers for that run again."""
    Path(f"{target}.fault").write_text("unavailable")
    command = [*ON_A_TERMINAL, "replay", kept, "--to", "test-faulty"]
    with subprocess.Popen(command) as process:
        wait_for(lambda: list((tmp_path / "spool").glob("replay-*/*/ledger.sqlite")), what="delivery")
        process.send_signal(number)
        process.wait(60)
    assert process.returncode not in (0, None)
    assert layout.node_directories(tmp_path / "spool") == [kept]
    assert list((tmp_path / "spool").iterdir()) == [kept.parent]


@pytest.mark.parametrize(
    ("content", "megabytes"), [(b"\0", 3000), (b'{"resourceSpans":[]}\n', 1000)], ids=["zeros", "lines"]
)
def test_a_small_archive_that_becomes_huge_is_refused(
    content: bytes, megabytes: int, target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """Well before it is unpacked, and nothing of it stays."""
    path = tmp_path / "bomb.zst"
    compressor = zstandard.ZstdCompressor().compressobj()
    block = content * ((1 << 20) // len(content))
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(compressor.compress(block))
        file.write(compressor.flush())
    assert path.stat().st_size < 200_000
    assert "becomes more than" in run("replay", path, "--to", "test-file", code=2)
    assert layout.node_directories(tmp_path / "spool") == []


def test_an_archive_that_needs_much_memory_is_refused(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """As the zstd command does: a few bytes may ask for gigabytes to be decompressed in."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=30)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "wide.zst").write_bytes(compressor.compress(b"x" * 100) + compressor.flush())
    assert "cannot be decompressed" in run("replay", tmp_path / "wide.zst", "--to", "test-file", code=2)


def test_copies_for_a_replay_have_a_limit(
    target: Path, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay leaves the spool's disk the room that it is to leave."""
    (tmp_path / "lines").write_bytes(b"x" * 99 + b"\n" + b"y" * 100)
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_LIMIT", "150")
    said = run("replay", tmp_path / "lines", "--to", "test-file", code=2)
    assert "OTEL_ROLLOUT_SPOOL_LIMIT" in said
    assert layout.node_directories(tmp_path / "spool") == []


@pytest.fixture
def pending(fresh_process: None, test_exporters: None, target: Path, tmp_path: Path) -> Path:
    """A node directory with 4 spans that nobody has delivered."""
    target.with_name(target.name + ".fault").write_text("unavailable")
    otel_rollout.configure({"test-faulty": {}}, forwarder_linger=60)
    record(3)
    otel_rollout.shutdown(0)
    node_dir = node_directory(tmp_path)
    wait_for(lambda: launcher.forwarder_runs(node_dir), what="a forwarder")
    return node_dir


@contextlib.contextmanager
def forwarding() -> Iterator[subprocess.Popen[str]]:
    """`otel-rollout forward`, beside another forwarder, from the moment on that it waits."""
    command = [*COMMAND, "forward"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert "Another forwarder is at work on" in process.stdout.readline()
        yield process


def end_of(process: subprocess.Popen[str]) -> str:
    """What it says from here on until it ends; ``communicate`` would miss what was read already."""
    assert process.stdout is not None
    said = process.stdout.read()
    process.wait(60)
    return said


def test_forward_waits_for_the_forwarder_at_work(pending: Path, target: Path) -> None:
    """It returns when that has delivered what lies there, and its exit code says so."""
    with forwarding() as process:
        assert process.poll() is None
        target.with_name(target.name + ".fault").unlink()
        said = end_of(process)
    assert process.returncode == 0, said
    assert "4 delivered to test-faulty, 0 pending" in said


def test_forward_goes_on_where_the_forwarder_at_work_ends(pending: Path, target: Path) -> None:
    """Killed before it has delivered: the command takes over."""
    with forwarding() as process:
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (directory / "cmdline").read_bytes().split(b"\0")
                if command[-3:-1] == [b"otel_rollout.forwarder", bytes(pending)]:
                    os.kill(int(directory.name), signal.SIGKILL)
        target.with_name(target.name + ".fault").unlink()
        said = end_of(process)
    assert process.returncode == 0, said
    assert set(delivered(target).values()) == {1}


def test_forward_returns_with_1_where_the_forwarder_at_work_is_refused(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """A person has to act: waiting would not end."""
    target.with_name(target.name + ".fault").write_text("refused")
    otel_rollout.configure({"test-faulty": {}})
    record(3)
    with rollout_trace_attr():  # as long as a process records, its forwarder stays
        wait_for(lambda: otel_rollout.status().exporters["test-faulty"].problem, what="a refusal")
        with forwarding() as process:
            said = end_of(process)
    assert process.returncode == 1
    assert "as the test wishes" in said


@pytest.fixture
def service(test_exporters: None, target: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`otel-rollout forward --watch`, started before anything was recorded."""
    process = subprocess.Popen(
        [*COMMAND, "forward", "--watch", "--to", "test-file"], stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


def test_a_service_forwards_every_run_that_comes(
    service: subprocess.Popen[str], kept: Path, target: Path, tmp_path: Path
) -> None:
    """A spool copied from another machine is delivered; SIGTERM ends the service, with an account."""
    copied = tmp_path / "spool" / "of another machine" / "node"
    copied.mkdir(parents=True)
    for path in [kept / layout.MANIFEST, *(kept / layout.ARCHIVE).iterdir()]:
        shutil.copy(path, copied)
    for path in list(copied.glob("*.zst")):
        subprocess.run(["zstd", "-d", "-q", "--rm", "--long=27", path], check=True)
    wait_for(lambda: sum(delivered(target).values()) == 30, what="delivery")
    service.send_signal(signal.SIGTERM)
    said, _ = service.communicate(timeout=60)
    assert service.returncode == 0
    assert "30 delivered to test-file, 0 pending" in said


def test_a_service_that_is_stopped_starts_nothing_new(
    test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """Not even what it was just looking at; nor does it wait for what nobody delivers."""
    for run_id in ("one", "two"):
        node_dir = layout.node_directory(tmp_path / "spool", run_id, "")
        layout.create_private(node_dir, tmp_path / "spool")
        layout.write_manifest(node_dir, layout.Manifest(run_id, "project", ("test-file",)))
        (node_dir / layout.SegmentName("1-0123456789abcdef", 1).file).write_text("{}\n")
    configured, _ = settings.from_environment({"OTEL_TRACES_EXPORTER": "test-file"})
    stop = threading.Event()

    def settings_of(node_dir: Path) -> settings.Settings:
        stop.set()  # while it looks whether there is anything to do
        return configured

    service = Service(tmp_path / "spool", settings_of)
    service.run(stop)
    began = time.monotonic()
    accounts = service.finish(60)
    assert time.monotonic() - began < 30
    assert [report.exporters["test-file"].pending for report in accounts] == [1, 1]
    assert list((tmp_path / "spool").rglob("forwarder.lock")) == []


def test_status_is_watched_on_a_terminal(kept: Path) -> None:
    """`status --watch` shows the account again and again, and Ctrl-C ends it quietly."""
    ours, theirs = pty.openpty()
    command = [*ON_A_TERMINAL, "status", "--watch"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        seen = ""
        while seen.count("recorded = delivered") < 2:
            seen += os.read(ours, 4096).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    os.close(ours)


def test_how_far_delivery_is_shows_on_a_terminal(kept: Path, target: Path) -> None:
    """`replay` and `forward` show how much is delivered, how fast, and for how long they still need."""
    fault = Path(f"{target}.fault")
    fault.write_text("unavailable")
    ours, theirs = pty.openpty()
    command = [*COMMAND, "replay", kept, "--to", "test-faulty"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        seen = ""
        while not re.search(r" 0/30\S* 0 spans/s \S*-:--:--", seen):
            seen += os.read(ours, 4096).decode(errors="replace")
        fault.unlink()
        with contextlib.suppress(OSError):  # nobody is there any more
            while os.read(ours, 4096):
                pass
        assert process.wait(60) == 0
    os.close(ours)
