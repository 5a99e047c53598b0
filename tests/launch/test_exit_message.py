"""Test the line at a program's end: counts, destination and undelivered spans."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_rollout import ExporterCount, Report
from otel_rollout.record.launch import at_exit, launcher
from otel_rollout.spool import layout
from tests.ports import free_port
from tests.waiting import wait_for
from tests.waits import changed, set_waits


class Terminal:
    """Run a program on a pseudo-terminal and read its screen."""

    def __init__(self, command: list[str], columns: int = 1000) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.in_foreground", *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns)},
            start_new_session=True,
        )
        os.close(slave)
        self.screen = ""

    def read_until(self, text: str, seconds: float = 60) -> None:
        """Read the screen until it shows ``text``."""
        deadline = time.monotonic() + seconds
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.screen!r}"
            assert self._read(), f"the program ended without {text!r}: {self.screen!r}"

    def press_ctrl_c(self) -> None:
        """Send the byte that a terminal turns into SIGINT."""
        os.write(self._master, b"\x03")

    def finish(self, seconds: float = 60) -> int:
        """Read to the end, and return the exit status."""
        deadline = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < deadline, self.screen
        os.close(self._master)
        return self.process.wait(seconds)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        if not ready:
            return True
        try:
            piece = os.read(self._master, 1 << 16)
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: the other end is closed
                raise
            return False
        self.screen += piece.decode(errors="replace")
        return bool(piece)


def program(exporters: object, **options: object) -> list[str]:
    """Return the command of a program that records, with its options."""
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [sys.executable, "-m", "tests.launch.programs.record_then", json.dumps(exporters), *given]


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def target(test_exporters, tmp_path: Path) -> Path:
    return tmp_path / "delivered.jsonl"


@pytest.fixture
def away(target: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Return exporters whose target is unavailable; progress is shown soon."""
    set_waits(monkeypatch, progress=0.1)
    Path(f"{target}.fault").write_text("unavailable")
    return {"test-faulty": {"path": str(target)}}


def node_directory(tmp_path: Path) -> Path:
    return wait_for(lambda: layout.node_directories(tmp_path / "spool"))[-1]


def test_program_ends_with_a_line_about_its_delivery(target):
    """One line on standard error names count and target, without logging configured."""
    ended = run(program({"test-file": {"path": str(target)}}))
    assert ended.returncode == 0
    (line,) = [line for line in ended.stderr.splitlines() if "Ctrl-C" not in line]
    assert line == f"otel-rollout: 2 spans delivered to the file {target}."


def test_configured_logging_gets_the_line(target):
    """An application that logs INFO gets the line once, in its own format."""
    ended = run(program({"test-file": {"path": str(target)}}, log="info"))
    assert ended.stderr.count("2 spans delivered") == 1
    assert "LOG otel-rollout: 2 spans delivered to" in ended.stderr


def test_level_of_the_librarys_logger_silences_the_line(target):
    """The level of the logger ``otel_rollout`` applies to the line."""
    ended = run(program({"test-file": {"path": str(target)}}, log="quiet"))
    assert "delivered" not in ended.stderr.replace("delivering", "")


def test_explicit_shutdown_is_reported_at_exit(target):
    """A program that ignores the report of shutdown() still gets the line, once."""
    ended = run(program({"test-file": {"path": str(target)}}, then="shut_down"))
    assert ended.stderr.count("2 spans delivered to the file") == 1


def test_each_run_of_a_program_ends_with_a_line(target):
    """A run that ends by another configure() has a line of the usual form."""
    ended = run(program({"test-file": {"path": str(target)}}, then="record_another_run"))
    assert [line for line in ended.stderr.splitlines() if "Ctrl-C" not in line] == [
        f"otel-rollout: 2 spans delivered to the file {target}.",
        f"otel-rollout: 1 span delivered to the file {target}.",
    ]


def test_pending_spans_of_an_earlier_run_are_reported(away, target):
    """The line of an earlier run names the command that watches its delivery."""
    ended = run(program(away, timeout=2, then="configure_again"))
    assert f"0 of 2 spans delivered to the file {target}. All 2 are kept on disk, and" in ended.stderr
    assert "otel-rollout status --watch" in ended.stderr
    assert "delivering spans, 0 of 2" in ended.stderr


def test_program_without_spans_ends_without_a_line(target):
    """A program that recorded nothing prints nothing."""
    assert run(program({"test-file": {"path": str(target)}}, trajectories=0)).stderr == ""


def test_program_with_all_trajectories_sampled_out_says_so(target):
    """The line says why nothing was recorded."""
    ended = run(program({"test-file": {"path": str(target)}}), OTEL_ROLLOUT_SAMPLE_RATE="0")
    assert ended.stderr == (
        "otel-rollout: nothing was recorded. Left out on purpose, by reason: 2 (sampled_out).\n"
    )


def test_child_process_ends_without_a_line(target):
    """Only the run's founder prints the line, not its children, also forked ones."""
    ended = run(program({"test-file": {"path": str(target)}}, then="start_children"))
    assert ended.stderr.count("delivered to") == 1


def test_wait_on_a_terminal_shows_progress_and_ends_by_ctrl_c(away, tmp_path):
    """Ctrl-C ends the wait without traceback; exit status and line stay."""
    terminal = Terminal(program(away, timeout=3600, then="wait_until_retried"))
    terminal.read_until("delivering spans")
    terminal.press_ctrl_c()
    assert terminal.finish() == 0
    assert "Traceback" not in terminal.screen
    last = terminal.screen.strip().splitlines()[-1]
    assert "0 of 2 spans delivered to the file" in last
    assert "All 2 are kept on disk, and delivery is tried again in the background" in last
    assert last.endswith(f"`otel-rollout status --watch --spool {node_directory(tmp_path)}`.")


def test_delivery_within_a_second_shows_no_progress(target, tmp_path):
    """A short wait shows no line of progress."""
    Path(f"{target}.fault").write_text("unavailable")
    terminal = Terminal(program({"test-faulty": {"path": str(target)}}, then="mend_target"))
    assert terminal.finish() == 0
    assert "delivering" not in terminal.screen
    assert "2 spans delivered to" in terminal.screen


def test_program_ended_by_ctrl_c_keeps_its_exit_status(target, tmp_path):
    """A program that Ctrl-C ends shows its own traceback first, then the line."""
    terminal = Terminal(program({"test-file": {"path": str(target)}}, then="run_on"))
    terminal.read_until("READY")
    terminal.press_ctrl_c()
    assert terminal.finish() == -signal.SIGINT  # 130 in a shell, as without tracing
    assert terminal.screen.count("Traceback") == 1
    assert terminal.screen.index("KeyboardInterrupt") < terminal.screen.index("2 spans delivered to")


def test_progress_inside_a_display_of_rich_prints_few_lines(away, tmp_path):
    """rich removes control characters, so lines are printed ever less often."""
    terminal = Terminal(program(away, timeout=1, then="shut_down_in_display"))
    assert terminal.finish() == 0
    assert 1 <= terminal.screen.count("delivering spans") <= 4  # after 0.1, 0.2, 0.4 and 0.8 s


def test_ctrl_c_in_an_explicit_shutdown_raises_in_the_program(away, tmp_path):
    """shutdown() raises KeyboardInterrupt; the exit prints the line without waiting."""
    terminal = Terminal(program(away, timeout=3600, then="shut_down_until_interrupted"))
    terminal.read_until("delivering spans")
    terminal.press_ctrl_c()
    assert terminal.finish() == 0
    assert "interrupted" in terminal.screen
    assert "0 of 2 spans delivered" in terminal.screen


def test_repeated_ctrl_c_shows_no_traceback_of_the_library(away, tmp_path):
    """A traceback, if any, comes from Python's own exit."""
    terminal = Terminal(program(away))
    terminal.read_until("delivering spans")
    for _ in range(5):
        terminal.press_ctrl_c()
    assert terminal.finish() in (0, -signal.SIGINT)  # Python restores SIGINT's default late at exit
    assert not re.search(r'File ".*otel_rollout', terminal.screen), terminal.screen


def test_forwarder_stays_while_a_program_waits(away, tmp_path):
    """One forwarder serves the whole wait, however short it would linger otherwise."""
    ended = run(program(away, timeout=2, linger=0.1, then="wait_until_retried"), **changed(announced=0.5))
    assert "delivery is tried again in the background" in ended.stderr
    log = (node_directory(tmp_path) / layout.FORWARDER_LOG).read_text()
    assert log.count("INFO otel_rollout.forwarder: forwarding ") == 1


def test_unreachable_mlflow_is_named_without_credentials(monkeypatch):
    """The line names target, state and the command to watch, but no credentials."""
    set_waits(monkeypatch, progress=0.1)
    uri = f"http://user:hunter2@127.0.0.1:{free_port()}"
    ended = run(program("mlflow", timeout=1, then="wait_until_retried"), MLFLOW_TRACKING_URI=uri)
    assert ended.returncode == 0
    line = ended.stderr.splitlines()[-1]
    address = uri.replace("user:hunter2@", "")
    assert f"0 of 2 spans delivered to MLflow experiment 'alpha' at {address}." in line
    assert "All 2 are kept on disk, and delivery is tried again in the background" in line
    assert "otel-rollout status --watch --spool " in line
    assert "hunter2" not in ended.stderr
    progress = [line for line in ended.stderr.splitlines() if "delivering spans, 0 of 2" in line]
    assert 1 <= len(progress) <= 8


def test_refusing_target_is_named_with_what_to_correct(target):
    """The line says what to correct, and which command then delivers."""
    Path(f"{target}.fault").write_text("refused")
    ended = run(program({"test-faulty": {"path": str(target)}}))
    line = ended.stderr.splitlines()[-1]
    assert "All 2 are kept on disk until this is corrected: as the test wishes." in line
    options = "Options given in code are not stored: set variables for path."
    assert re.search(rf"Then deliver with: `otel-rollout forward --spool \S+`\. {options}$", line)


def test_program_ended_by_sigterm_or_sigkill_has_its_spans_delivered(target, tmp_path):
    """No exit handler prints a line, but the forwarder delivers the spans."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        terminal = Terminal(program({"test-file": {"path": str(target)}}, then="run_on"))
        terminal.read_until("READY")
        wait_for(lambda: launcher.forwarder_runs(node_directory(tmp_path)), what="a forwarder")
        os.kill(terminal.process.pid, number)
        assert terminal.finish() == -number
        assert "delivered to" not in terminal.screen
    wait_for(lambda: len(target.read_text().splitlines()) == 4, what="delivery of both")


def test_console_exporter_names_the_log_it_prints_to(tmp_path):
    """The program names the forwarder's log at its start and its end."""
    ended = run(program("console"))
    log = node_directory(tmp_path) / "forwarder.log"
    assert f"the exporter console prints into {log}" in ended.stderr
    assert f"2 spans delivered to console, printed in {log}." in ended.stderr
    assert '"name": "rollout_trace"' in log.read_text()


def report_of(count: ExporterCount, recorded: int, **others: object) -> Report:
    fields = {"started": recorded, "recorded": recorded, "unfinished": 0, "dropped": {}, "sampled_out": {}}
    fields |= {"groups_kept": {}, "groups_sampled_out": {}, "exporters": {"otlp": count}, "directory": "/p"}
    return Report(**(fields | others), count_steps=dict)


def test_line_counts_every_span(tmp_path):
    """The line has the number of spans of each kind, from delivered to lost."""
    count = ExporterCount(delivered=5, rejected=2, pending=3, sampled_out=4, destination="T")
    said = at_exit.text(report_of(count, 15, dropped={"spool_limit": 6}), tmp_path)
    assert said.startswith("5 of 15 spans delivered to T.")
    for words in (
        "4 spans sampled out",
        "2 spans rejected",
        "The other 3 are",
        "6 (spool_limit)",
        "Lost: 1 span",
    ):
        assert words in said


def test_commands_end_before_the_sentence_of_the_next_exporter(tmp_path):
    """A command can be pasted where another exporter's sentence follows."""
    counts = {"a": ExporterCount(pending=3), "b": ExporterCount(delivered=3, destination="T")}
    said = at_exit.text(report_of(ExporterCount(), 3, exporters=counts), tmp_path)
    assert f" --spool {tmp_path}`. 3 spans delivered to T." in said


@pytest.mark.parametrize("name", ["console", "e"])
def test_spans_without_a_forwarder_are_reported_with_its_log(name, tmp_path):
    """Without a forwarder, the line names its log, and the exporter as the target."""
    tmp_path.chmod(0o700)
    (tmp_path / layout.FORWARDER_LOG).write_text("Permission denied")
    said = at_exit.text(
        report_of(ExporterCount(pending=3), 3, exporters={name: ExporterCount(pending=3)}), tmp_path
    )
    assert said.startswith(f"0 of 3 spans delivered to {name}. All 3 are kept on disk. No process delivers;")
    assert f"{tmp_path}/forwarder.log may say why" in said


def test_progress_on_a_narrow_terminal_is_one_line(away, tmp_path):
    """A line wider than the terminal is cut: a wrapped line could not be cleared."""
    terminal = Terminal(program(away), columns=40)
    terminal.read_until("delivering")
    terminal.press_ctrl_c()
    assert terminal.finish() == 0
    pieces = re.split(r"\x1b\[K|[\r\n]+", terminal.screen)
    shown = [piece for piece in pieces if "delivering spans" in piece]
    assert shown
    assert all(len(piece.replace("^C", "")) < 40 for piece in shown)  # the terminal echoes ^C


def test_line_on_a_terminal_breaks_between_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path stays whole; so does a line that has a command, which a person pastes."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(at_exit, "is_on_a_terminal", lambda: True)
    monkeypatch.setattr(at_exit.logger, "hasHandlers", lambda: False)
    target = f"the table at /data/{'x' * 40}"
    at_exit.say(report_of(ExporterCount(delivered=5, destination=target), 5), tmp_path)
    said = capsys.readouterr().err
    assert said == f"otel-rollout: 5 spans delivered to the\ntable at\n{target.rpartition(' ')[2]}.\n"
    at_exit.say(report_of(ExporterCount(pending=5), 5), tmp_path)
    assert f"`otel-rollout forward --spool {tmp_path}`.\n" in capsys.readouterr().err
