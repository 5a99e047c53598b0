"""`otel-rollout replay`: deliver files again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

import otel_rollout
from otel_rollout.cli.runs import as_node_directory, settings_of_copies
from otel_rollout.settings import Settings
from otel_rollout.spool import files, layout
from tests.cli.command import ON_A_TERMINAL, run
from tests.forwarder.test_delivery import delivered, node_directory, record
from tests.waiting import wait_for


def test_replay_of_an_archive_delivers_every_span_once(archived: Path, target: Path, tmp_path: Path) -> None:
    """All spans of an archive are delivered again.

    Nothing of the replay stays on disk.
    """
    assert "test-file: 30 lines delivered, 0 rejected, 0 pending" in run(
        "replay", archived, "--to", "test-file"
    )
    assert sum(delivered(target).values()) == 30
    assert delivered(target) == delivered(tmp_path / "first")
    assert layout.node_directories(tmp_path / "spool") == [archived]


def test_replay_of_a_file_of_another_tool_delivers_its_spans(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """A line may hold several spans, and the last line may lack its end."""
    span = '{"traceId":"%032x","spanId":"%016x","name":"s","startTimeUnixNano":"1","endTimeUnixNano":"2"}'
    pair = ",".join(span % (7, n) for n in (1, 2))
    line = '{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}'
    (tmp_path / "traces.json").write_text(line % pair + "\n" + line % (span % (7, 3)))
    assert "2 lines delivered" in run("replay", tmp_path / "traces.json", "--to", "test-file")
    assert {span_id for span_id, _ in delivered(target)} == {f"{n:016x}" for n in (1, 2, 3)}


def test_replay_of_a_dead_letter_file_delivers_rejected_spans(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """Rejected spans are delivered once a target accepts them."""
    otel_rollout.configure({"test-faulty": {"path": str(tmp_path / "first")}})
    record(3)
    record(1, name="poison")
    otel_rollout.shutdown(30)
    rejected = node_directory(tmp_path) / "rejected.test-faulty.jsonl"
    assert "1 line delivered, 0 rejected" in run("replay", rejected, "--to", "test-file")
    assert [name for _, name in delivered(target)] == ["poison"]


def test_files_that_cannot_be_replayed_are_reported(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """Missing files, empty directories, unknown exporters and bad lines are reported.

    Only invalid lines, which are rejected, leave a run on disk.
    """
    missing = tmp_path / "missing"
    said = run("replay", missing, "--to", "test-file", code=2)
    assert said == f"cannot replay: {missing}: No such file or directory\n"
    (tmp_path / "empty").mkdir()
    assert "holds no segments" in run("replay", tmp_path / "empty", "--to", "test-file", code=2)
    (tmp_path / "text").write_text("hello\n")
    assert "no span exporter is called 'nobody'" in run("replay", tmp_path / "text", "--to", "nobody", code=2)
    assert "Nothing was recorded" in run("status", code=1)
    rejected = run("replay", tmp_path / "text", "--to", "test-file", code=1)
    assert "0 lines delivered, 1 rejected" in rejected
    assert "/rejected.*.jsonl, with reasons" in " ".join(rejected.split())
    assert "otel-rollout forward" not in rejected, "nothing is left to deliver"
    assert "replay-" in run("status")


def test_replay_of_a_device_is_refused(target: Path, test_exporters: None, tmp_path: Path) -> None:
    """A device, which may have no end, is not copied, and no run stays on disk."""
    assert "/dev/zero is a device, not a file" in run("replay", "/dev/zero", "--to", "test-file", code=2)
    assert "Nothing was recorded" in run("status", code=1)


def test_copies_that_are_delivered_later_still_name_the_file(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """The manifest of the copies knows it, so that every forwarder's log names what a person has named."""
    (tmp_path / "text").write_text("hello\n")
    with as_node_directory([tmp_path / "text"], settings_of_copies(["test-file"])) as node_dir:
        pass
    assert f"rejects a span of {tmp_path / 'text'}: " in run("forward", "--spool", node_dir, code=1)


def test_many_rejected_lines_are_logged_ten_times(target: Path, test_exporters: None, tmp_path: Path) -> None:
    """Of many rejected lines ten are logged, with the file that was named; the dead letters have all."""
    (tmp_path / "text").write_text("hello\n" * 500)
    output = run("replay", tmp_path / "text", "--to", "test-file", code=1)
    assert output.count(f"rejects a span of {tmp_path / 'text'}: ") == 10
    (dead_letters,) = tmp_path.rglob("rejected.test-file.jsonl")
    assert output.count(f"written to {dead_letters} only") == 1
    assert len(dead_letters.read_text().splitlines()) == 500


@given(
    entry=st.binary(max_size=9)
    | st.sampled_from([b"{}", b"[]", b"null", b"1", b'{"line": null}', b'{"line": 5}'])
)
def test_any_entry_of_a_dead_letter_file_is_a_line_or_a_named_error(entry: bytes) -> None:
    """An entry gives a recorded line, or a ValueError with file and line."""
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


def test_invalid_entry_of_a_dead_letter_file_is_named(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """The error names file and line, nothing is delivered, and no run stays on disk."""
    path = tmp_path / "rejected.test-file.jsonl"
    path.write_bytes(b'{"line": "{}"}\n{}\n')
    assert f"cannot replay: {path}, line 2:" in run("replay", path, "--to", "test-file", code=2)
    assert not target.exists()
    assert layout.node_directories(tmp_path / "spool") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_replay_interrupted_while_copying_leaves_no_run(
    target: Path, test_exporters: None, tmp_path: Path, number: signal.Signals
) -> None:
    """Incomplete copies do not count as a run; Ctrl-C and SIGTERM remove them."""
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
def test_replay_interrupted_while_delivering_leaves_no_run(
    archived: Path, target: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The copy is removed, and a message says how to deliver the rest.

    The original run stays.
    """
    Path(f"{target}.fault").write_text("unavailable")
    command = [*ON_A_TERMINAL, "replay", archived, "--to", "test-faulty"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_for(lambda: list((tmp_path / "spool").glob("replay-*/*/ledger.sqlite")), what="delivery")
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "test-faulty: 0 lines delivered, 0 rejected, 30 pending" in output
    assert "Your files are unchanged: to deliver the rest, run the command again" in output
    assert layout.node_directories(tmp_path / "spool") == [archived]
    assert list((tmp_path / "spool").iterdir()) == [archived.parent]


def test_copy_into_which_a_thread_still_writes_is_removed(tmp_path: Path) -> None:
    """A delivery that was interrupted may write files while its copy is being removed."""
    (tmp_path / "lines.jsonl").write_bytes(b"{}\n")
    is_over = threading.Event()

    def write(place: Path) -> None:
        for number in range(400):
            with contextlib.suppress(FileNotFoundError):
                (place / str(number)).write_bytes(b"")
        is_over.set()

    def interrupted() -> None:
        with as_node_directory(
            [tmp_path / "lines.jsonl"], Settings(spool_dir=tmp_path / "spool")
        ) as node_dir:
            threading.Thread(target=write, args=(node_dir,)).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_over.wait(30)
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "megabytes"), [(b"\0", 3000), (b'{"resourceSpans":[]}\n', 1000)], ids=["zeros", "lines"]
)
def test_small_archive_that_expands_to_gigabytes_is_refused(
    content: bytes, megabytes: int, target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """The archive is refused before it is unpacked, and nothing of it stays on disk."""
    path = tmp_path / "bomb.zst"
    compressor = zstd.ZstdCompressor()
    block = content * ((1 << 20) // len(content))
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(compressor.compress(block))
        file.write(compressor.flush())
    assert path.stat().st_size < 200_000
    assert "decompresses to more than" in run("replay", path, "--to", "test-file", code=2)
    assert layout.node_directories(tmp_path / "spool") == []


def test_archive_that_needs_much_memory_is_refused(
    target: Path, test_exporters: None, tmp_path: Path
) -> None:
    """A few bytes may ask for gigabytes of memory; the zstd command refuses them too."""
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 30})
    (tmp_path / "wide.zst").write_bytes(compressor.compress(b"x" * 100) + compressor.flush())
    assert "cannot be decompressed" in run("replay", tmp_path / "wide.zst", "--to", "test-file", code=2)


def test_replay_larger_than_the_spool_limit_is_refused(
    target: Path, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of a replay count against the limit of the spool."""
    (tmp_path / "lines").write_bytes(b"x" * 99 + b"\n" + b"y" * 100)
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_LIMIT", "150")
    output = run("replay", tmp_path / "lines", "--to", "test-file", code=2)
    assert "OTEL_ROLLOUT_SPOOL_LIMIT" in output
    assert layout.node_directories(tmp_path / "spool") == []
