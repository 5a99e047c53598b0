"""Machines on which something is missing: importing, recording, status() and shutdown() end no program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import otel_rollout
from otel_rollout import SettingsError, rollout_trace_attr, rollout_trace_op, runtime
from otel_rollout.doctor.filesystem import spool_place
from otel_rollout.doctor.report import Verdict
from otel_rollout.launch import status
from otel_rollout.runs import directory, membership
from otel_rollout.spool import layout
from tests.faults.job import ROOT
from tests.waiting import wait_for

PROGRAM = """
import otel_rollout
with otel_rollout.rollout_trace_attr(step=1):
    print(otel_rollout.rollout_trace_op(lambda x: x)(5))
otel_rollout.status()
otel_rollout.shutdown(1)
"""
NO_ROOM = (
    "".join(  # as in a container whose file system is read-only
        f"mount --bind {place} {place}; mount -o remount,bind,ro {place}; " for place in ("/tmp", "/var/tmp")
    )
    + "cd /proc;"
)
WITHOUT_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that an unprivileged user gets to and may write to."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path

    def is_removed() -> bool:  # a forwarder may be making a file there
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    wait_for(is_removed, what="removal")


class Ran(NamedTuple):
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str


def run(
    program: str,
    variables: dict[str, str] | None = None,
    *,
    shell: str = "",
    without: Sequence[str] = (),
    within: Sequence[str] = (),
    redirect: str = "",
    cwd: Path | None = None,
) -> Ran:
    """Run a program in a process of its own, after commands of a shell."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'exporters'}", **(variables or {})}
    for name in without:
        environment.pop(name, None)
    command = [*within, "/bin/sh", "-c", f'{shell} exec "$@" {redirect}', "sh", sys.executable, "-c", program]
    ran = subprocess.run(
        command, env=environment, capture_output=True, timeout=120, check=False, cwd=cwd or ROOT
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


TRACED = {"OTEL_TRACES_EXPORTER": "console"}
A_STRANGER = [  # who may read everything, since the interpreter may lie in root's home
    "setpriv", "--reuid=12345", "--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search",
]  # fmt: skip
MACHINES: dict[str, dict[str, Any]] = {
    "no writable temporary directory": {"within": ["unshare", "-m"], "shell": NO_ROOM},
    "no file may grow": {"shell": "ulimit -f 0;"},
    "no home directory": {"without": ["HOME"]},
    "a home directory that is none": {"variables": {"HOME": "/dev/null/x"}},
    "a user id without a name": {"within": A_STRANGER},
    "stdin closed": {"redirect": "<&-"},
    "stdout closed": {"redirect": ">&-"},
    "all streams closed": {"redirect": "<&- >&- 2>&-"},
    "LC_ALL=C": {"variables": {"LC_ALL": "C"}},
    "no UTF-8 at all": {"variables": WITHOUT_UTF8},
    "no environment": {"without": list(os.environ)},
}


@pytest.mark.parametrize("variables", [{}, TRACED], ids=["off", "on"])
@pytest.mark.parametrize("machine", MACHINES)
def test_program_runs_on_machine_where_something_is_missing(
    machine: str, variables: dict[str, str], open_to_all: Path
) -> None:
    """Importing, recording, status() and shutdown() raise nothing, and the program's calls go through."""
    how = dict(MACHINES[machine])
    if machine != "no writable temporary directory":
        variables = {**variables, "TMPDIR": str(open_to_all)}
    given = {**variables, "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1", **how.pop("variables", {})}
    ran = run(PROGRAM, given, without=["OTEL_ROLLOUT_SPOOL_DIR", *how.pop("without", [])], **how)
    assert ran.code == 0, ran.err
    assert ran.out == ("5\n" if ">&-" not in how.get("redirect", "") else "")
    assert "Traceback" not in ran.err
    if variables == TRACED and machine == "no writable temporary directory":
        assert ran.err.count("tracing is OFF") == 1
        assert "OTEL_ROLLOUT_SPOOL_DIR" in ran.err


FAILING_HANDLER = """
import logging
class Failing(logging.Handler):
    def emit(self, record):
        raise RuntimeError("the handler")
logging.getLogger().addHandler(Failing())
"""


@pytest.mark.parametrize("spool_dir", ["usable", "/dev/null/x"])
@pytest.mark.parametrize(
    "before",
    ["import sys; sys.stderr.close()", "import sys; sys.stderr = sys.stdout = None", FAILING_HANDLER],
    ids=["stderr closed", "no streams", "a handler that fails"],
)
def test_program_whose_log_cannot_be_written_runs(before: str, spool_dir: str, tmp_path: Path) -> None:
    """What we would have said is lost, and nothing else: recording, status() and shutdown() go on."""
    code = PROGRAM.replace("print(", "seen = (").replace("status()", "status().problem") + (
        f"open({str(tmp_path / 'seen')!r}, 'w').write(str(seen))"
    )
    given = {**TRACED, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / spool_dir)}
    ran = run(f"{before}\n{code}", given)
    assert ran.code == 0, ran.err
    assert (tmp_path / "seen").read_text() == "5"
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("variables", [{}, TRACED], ids=["off", "on"])
@pytest.mark.parametrize("name", [b"\xff\xfe", "实验".encode(), b"deleted"])
@pytest.mark.parametrize("encoding", [{}, WITHOUT_UTF8], ids=["utf-8", "ascii"])
def test_program_runs_in_any_working_directory(
    name: bytes, variables: dict[str, str], encoding: dict[str, str], tmp_path: Path
) -> None:
    """One whose name is no text in this process, or that was deleted; workers find what they inherit."""
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    place.mkdir()
    program = "import os, subprocess, sys\n" + PROGRAM.replace(
        "otel_rollout.status()",
        "code = 'import os; from otel_rollout.runs.membership import decide; '\n"
        "code += 'print(os.fsencode(decide().working_dir))'\n"
        "subprocess.run([sys.executable, '-c', code], check=True, cwd='/')",
    )
    if name == b"deleted":
        program = f"import os; os.rmdir({str(place)!r})\n" + program
    given = {**variables, **encoding, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool")}
    ran = run("import sys; sys.stdout.reconfigure(line_buffering=True)\n" + program, given, cwd=place)
    assert ran.code == 0, ran.err
    inherited = os.fsencode(place) if variables and name != b"deleted" else b""
    assert ran.out == f"5\n{inherited!r}\n"
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("name", "encoding"), [(b"\xff\xfe", {}), ("实验".encode(), WITHOUT_UTF8)], ids=["bytes", "ascii"]
)
def test_spool_directory_whose_name_is_no_text_is_delivered_and_shown(
    name: bytes, encoding: dict[str, str], test_exporters: None, tmp_path: Path
) -> None:
    """It is recorded in, delivered from, and shown by every command."""
    spool_dir = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
    given = {
        **encoding,
        "OTEL_TRACES_EXPORTER": "test-file",
        "OTEL_TEST_FILE": str(tmp_path / "delivered"),
        "OTEL_ROLLOUT_SPOOL_DIR": spool_dir,
        "PYTHONPATH": os.environ["PYTHONPATH"],
    }
    ran = run(PROGRAM.replace("shutdown(1)", "shutdown(60)"), given)
    assert (ran.code, ran.out) == (0, "5\n"), ran.err
    assert len((tmp_path / "delivered").read_text().splitlines()) == 2
    for command in ("status", "status --json --steps", "forward", "show"):
        ran = run(f"import sys; sys.argv[1:] = {command.split()!r}\n{APP}", given)
        assert ran.code == 0, ran.err
        assert "Traceback" not in ran.err
        assert json.loads(ran.out)[0]["recorded"] == 2 if "--json" in command else ran.out


@pytest.mark.parametrize("setting", ["spool_dir", "working_dir", "tokenizer"])
def test_path_that_process_cannot_encode_is_refused(setting: str, tmp_path: Path) -> None:
    """configure() names the argument, the encoding and what to set; what the process can name it takes."""
    path = f"{str(tmp_path)!r} + '/\\u5b9e\\u9a8c'"
    code = f"import otel_rollout; otel_rollout.configure('console', {setting}={path})"
    ran = run(code, {**WITHOUT_UTF8, "PYTHONIOENCODING": "utf-8"})
    assert ran.code == 1
    assert f"SettingsError: configure({setting}=" in ran.err
    assert "LC_ALL=C.UTF-8 or PYTHONUTF8=1" in ran.err
    assert run(code, {"LC_ALL": "C", "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "0"}).code == 0
    with pytest.raises(SettingsError, match="zero byte"):
        otel_rollout.configure("console", **{setting: "a\0b"})


def test_variable_that_is_no_utf8_is_named_and_its_default_used() -> None:
    """Bytes that are no UTF-8 in a name or attribute are said, and the default is used."""
    ran = run(PROGRAM, {**TRACED, "OTEL_ROLLOUT_PROJECT": "\udcff", "OTEL_RESOURCE_ATTRIBUTES": "a=\udcff"})
    assert (ran.code, ran.out) == (0, "5\n")
    assert "OTEL_ROLLOUT_PROJECT='\\udcff' is not valid UTF-8; the default is used" in ran.err
    assert "OTEL_RESOURCE_ATTRIBUTES is not valid UTF-8" in ran.err
    assert "Traceback" not in ran.err


def test_output_of_libraries_does_not_enter_spool_files(tmp_path: Path) -> None:
    """Where a program has closed its streams, their numbers are not those of our files."""
    code = PROGRAM.replace("print(", "(").replace(
        "otel_rollout.status()",
        "import os\nfor stream in (0, 1, 2):\n    try: os.write(stream, b'printed by a library')\n"
        "    except OSError: pass",
    )
    ran = run(code, {**TRACED, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path)}, redirect="<&- >&- 2>&-")
    assert ran.code == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name.endswith(".journal") for path in files)
    assert not [path for path in files if b"printed by" in path.read_bytes()]


# --- a spool that cannot be used --------------------------------------------------------------------------

UNPRIVILEGED = """
import ctypes, os
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
"""
PREPARED = """
import logging, os, pathlib, shutil, sqlite3, sys
import otel_rollout
from otel_rollout.account import ledger, node_report, report
from otel_rollout.forwarder import delivery, lock
from otel_rollout.launch import at_exit, drain, launcher, shutdown, status
otel_rollout.configure("console", spool_dir=SPOOL, run_id=RUN, node="node")
spool, run, node = (pathlib.Path(SPOOL), pathlib.Path(SPOOL, RUN), pathlib.Path(SPOOL, RUN, "node"))
old = str(spool) + ".old"

def record():
    with otel_rollout.rollout_trace_attr(step=1):
        assert otel_rollout.rollout_trace_op(lambda x: x)(5) == 5

"""
ENDING = """
record()
report = otel_rollout.status()
print(report.recorded, report.place == str(node), report.problem)
report = otel_rollout.shutdown(1)
print(report.recorded, report.place == str(node), report.problem)
print(report.summary() and "summed up", dict(report.by_step) is not None, "lost", report.lost)
"""
FAULTS = {
    "a file in place of the spool": "spool.write_text('')",
    "a file in place of the run": "spool.mkdir(); run.write_text('')",
    "a file in place of the node": "run.mkdir(parents=True); node.write_text('')",
    "a link in place of the node": "run.mkdir(parents=True); node.symlink_to('/etc')",
    "squatted": "node.mkdir(parents=True); os.chown(run, 4711, 4711)",
    "everybody may write": "run.mkdir(parents=True); node.mkdir(); node.chmod(0o777)",
    "removed under way": "record(); spool.rename(old); shutil.rmtree(old, ignore_errors=True)",
    "replaced by a file under way": "record(); spool.rename(old); spool.write_text('')",
    "permissions taken away under way": "record(); node.chmod(0)",
    "the run's permissions taken away under way": "record(); run.chmod(0)",
    "ledger of nonsense": "record(); (node / 'ledger.sqlite').write_text('nonsense' * 100)",
    "ledger a directory": "record(); (node / 'ledger.sqlite').mkdir()",
    "ledger unreadable": "record(); (node / 'ledger.sqlite').touch(); (node / 'ledger.sqlite').chmod(0)",
    "journal unreadable": "record(); [p.chmod(0) for p in node.glob('*.journal')]",
    "lock a directory": "run.mkdir(parents=True); node.mkdir(); (node / 'forwarder.lock').mkdir()",
    "a run id too long for a name": "",
}
"""What happens to a spool before or while a process records."""


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("fault", FAULTS)
def test_program_whose_spool_cannot_be_used_ends_normally(fault: str, user: str, open_to_all: Path) -> None:
    """status(), shutdown() and the exit raise nothing, say at most one line each, and tell what is known."""
    run_id = "r" * 300 if "too long" in fault else "run"
    prepared = PREPARED.replace("SPOOL", repr(str(open_to_all / "spool"))).replace("RUN", repr(run_id))
    before, comma, rest = prepared.partition("otel_rollout.configure")
    drop = UNPRIVILEGED if user == "nobody" else ""
    program = before + drop + comma + rest + FAULTS[fault] + "\n" + ENDING
    if fault == "squatted" and user == "nobody":  # only root can give directories away
        (open_to_all / "spool" / "run" / "node").mkdir(parents=True)
        (open_to_all / "spool" / "run").chmod(0o700)
        os.chown(open_to_all / "spool", 65534, 65534)
        program = program.replace(FAULTS[fault], "")
    ran = run(program, {"OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1"})
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    status, shutdown, rest = ran.out.splitlines()
    assert rest == "summed up True lost 0"
    for line in (status, shutdown):
        recorded, is_there, problem = line.split(" ", 2)
        assert recorded in ("0", "2", "4"), line
        assert is_there == "True" or problem == "None", line
    lines = [line for line in ran.err.splitlines() if "otel-rollout" in line or "otel_rollout" in line]
    assert len(lines) == len(set(lines)) <= 6, ran.err


@pytest.mark.parametrize("command", ["status", "show", "forward"])
def test_command_on_unreadable_spool_names_the_reason(command: str, open_to_all: Path) -> None:
    """One line names the directory and the reason; the command says nothing of a run of its own."""
    layout = open_to_all / "spool"
    layout.mkdir(mode=0o700)
    as_root = (
        f"import sys\nfrom otel_rollout.cli import app\ntry: app([{command!r}])\nexcept SystemExit: pass\n"
    )
    program = as_root + "print('NOBODY', file=sys.stderr)\n" + UNPRIVILEGED + f"app([{command!r}])"
    ran = run(program, {"OTEL_TRACES_EXPORTER": "console", "OTEL_ROLLOUT_SPOOL_DIR": str(layout)})
    assert ran.code == 2, ran.err
    _, said = ran.err.split("NOBODY\n")  # modules are imported by then, which nobody may not be able to read
    assert said.strip().rstrip(".") == f"{layout} cannot be read: Permission denied"


def test_status_of_unreadable_spool_has_counts_of_this_process(
    tracing: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts of this process, nothing claimed as delivered, the reason; one warning however often asked."""
    with rollout_trace_attr(step=1):
        rollout_trace_op(lambda: None)()
    node_dir = directory.node_directory(membership.decide())
    wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 2, what="delivery")
    assert status.delivered_here()["test-file"].delivered == 2
    node_dir.chmod(0o777)
    assert status.delivered_here() == {}  # a counter does not go back
    reports = [otel_rollout.status(), otel_rollout.status(), otel_rollout.shutdown(1)]
    node_dir.chmod(0o700)
    for report in reports:
        assert (report.started, report.recorded, report.lost) == (2, 2, 0)
        assert report.exporters["test-file"].pending == 2
        assert "is writable for other users" in str(report.problem)
        assert str(report.problem) in report.summary()
    assert sum("is not known" in record.message for record in caplog.records) == 1


# --- commands ---------------------------------------------------------------------------------------------

APP = "from otel_rollout.cli import app; app()"


@pytest.mark.parametrize("command", ["status", "status --json", "forward"])
@pytest.mark.parametrize("place", ["nothing", "a file", "a link to nothing", "too long"])
def test_command_on_unusable_directory_names_the_reason(command: str, place: str, tmp_path: Path) -> None:
    """One line, and exit code 1 or 2; JSON all the same where it was asked for."""
    path = tmp_path / ("x" * 300 if place == "too long" else "place")
    if place == "a file":
        path.touch()
    if place == "a link to nothing":
        path.symlink_to(tmp_path / "nothing")
    ran = run(f"import sys; sys.argv[1:] = {command.split()!r}\n{APP}", {"OTEL_ROLLOUT_SPOOL_DIR": str(path)})
    assert ran.code in (1, 2)
    assert str(path) in ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.out == ("[]\n" if "--json" in command else "")


def test_status_of_unreadable_directory_shows_the_reason(tmp_path: Path) -> None:
    """The account of the others is shown, and the exit code is 1."""
    for name in ("good", "damaged"):
        node_dir = layout.node_directory(tmp_path, name, "node")
        layout.create_private(node_dir, tmp_path)
        layout.write_manifest(node_dir, layout.Manifest(name, "project", ("console",)))
    (node_dir / "ledger.sqlite").symlink_to(tmp_path)
    ran = run(
        f"import sys; sys.argv[1:] = ['status', '--all']\n{APP}", {"OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path)}
    )
    assert "ledger.sqlite is a link" in ran.out
    assert str(tmp_path / "good" / "node") in ran.out
    assert "Traceback" not in ran.err


# --- file systems that say nothing of their size ----------------------------------------------------------


@pytest.fixture(params=["ramfs", "tmpfs"])
def unlimited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A real file system that says nothing is free, and takes what it is given."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-o", "size=0,mode=700"] if request.param == "tmpfs" else ["-o", "mode=700"]
    subprocess.run(["mount", "-t", request.param, *options, "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("spool_full", ["newest", "trajectories"])
def test_file_system_that_reports_no_free_space_is_recorded_in(
    unlimited: Path, spool_full: str, fresh_process: None, test_exporters: None, tmp_path: Path
) -> None:
    """All is recorded and delivered, trajectories with their roots; what it may take is a fixed limit."""
    otel_rollout.configure(
        {"test-file": {"path": str(tmp_path / "delivered")}}, spool_dir=str(unlimited), spool_full=spool_full
    )
    for _ in range(10):
        with rollout_trace_attr(step=1):
            rollout_trace_op(lambda: None)()
    active = runtime.current()
    assert active is not None
    assert active.writer._usage.limit == layout.LIMIT_OF_UNKNOWN_SPACE
    report = otel_rollout.shutdown(30)
    assert (report.recorded, report.dropped, report.left_out) == (20, {}, {})
    assert report.exporters["test-file"].delivered == 20
    finding = spool_place(unlimited, "the spool")
    assert finding.verdict is Verdict.OK
    assert "unknown space free" in finding.found


class FileSystem(NamedTuple):
    """What statvfs says."""

    f_frsize: int
    f_blocks: int
    f_bfree: int
    f_bavail: int


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("available", [0, 1, 1000])
@pytest.mark.parametrize("reserved", [0, 1, 1000])
@pytest.mark.parametrize("size", [0, 4096])
def test_default_limit_is_above_zero_on_any_file_system(
    size: int, reserved: int, available: int, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above zero, whatever is reserved for the administrator, who alone may use it."""
    state = FileSystem(512, size, available + reserved, available)
    monkeypatch.setattr(layout.os, "statvfs", lambda path: state)
    monkeypatch.setattr(layout.os, "geteuid", lambda: user)
    limit = layout.default_limit(tmp_path)
    if size == 0:
        assert limit == layout.LIMIT_OF_UNKNOWN_SPACE
    else:
        assert limit == max(1, 512 * (available + (0 if user else reserved)) // 2)
