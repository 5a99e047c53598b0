"""Test machines on which something is missing: tracing ends no program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout import SettingsError
from tests.faults.running import COMMAND, run
from tests.spool_reader import contents_below

PROGRAM = "record_on_odd_machine"
NO_ROOM = (
    "".join(  # as in a container whose file system is read-only
        f"mount --bind {place} {place}; mount -o remount,bind,ro {place}; " for place in ("/tmp", "/var/tmp")
    )
    + "cd /proc;"
)
WITHOUT_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


TRACED = {"OTEL_TRACES_EXPORTER": "console"}
A_STRANGER = [  # may read everything, because the interpreter may be in root's home
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
    """Import, recording, status() and shutdown() raise nothing."""
    how = dict(MACHINES[machine])
    if machine != "no writable temporary directory":
        variables = {**variables, "TMPDIR": str(open_to_all)}
    given = {**variables, "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "1", **how.pop("variables", {})}
    ran = run([PROGRAM], given, without=["OTEL_ROLLOUT_SPOOL_DIR", *how.pop("without", [])], **how)
    assert ran.code == 0, ran.err
    assert ran.out == ("5\n" if ">&-" not in how.get("redirect", "") else "")
    assert "Traceback" not in ran.err
    if variables == TRACED and machine == "no writable temporary directory":
        assert ran.err.count("tracing is OFF") == 1
        assert "OTEL_ROLLOUT_SPOOL_DIR" in ran.err


@pytest.mark.parametrize("spool_dir", ["usable", "/dev/null/x"])
@pytest.mark.parametrize("log", ["closed", "missing", "failing"])
def test_program_whose_log_cannot_be_written_runs(log: str, spool_dir: str, tmp_path: Path) -> None:
    """Only log records are lost; recording, status() and shutdown() work."""
    given = {**TRACED, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / spool_dir)}
    ran = run([PROGRAM, "--log", log, "--result", str(tmp_path / "seen")], given)
    assert ran.code == 0, ran.err
    assert (tmp_path / "seen").read_text() == "5"
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("variables", [{}, TRACED], ids=["off", "on"])
@pytest.mark.parametrize("name", [b"\xff\xfe", "实验".encode(), b"deleted"])
@pytest.mark.parametrize("encoding", [{}, WITHOUT_UTF8], ids=["utf-8", "ascii"])
def test_program_runs_in_any_working_directory(
    name: bytes, variables: dict[str, str], encoding: dict[str, str], tmp_path: Path
) -> None:
    """The directory may be deleted, or its name no text; workers inherit it."""
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    place.mkdir()
    program = [PROGRAM, "--child", *(["--remove", str(place)] if name == b"deleted" else [])]
    given = {**variables, **encoding, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool")}
    ran = run(program, given, cwd=place)
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
    """The program records there, the forwarder delivers, and every command shows it."""
    spool_dir = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
    given = {
        **encoding,
        "OTEL_TRACES_EXPORTER": "test-file",
        "OTEL_TEST_FILE": str(tmp_path / "delivered"),
        "OTEL_ROLLOUT_SPOOL_DIR": spool_dir,
        "PYTHONPATH": os.environ["PYTHONPATH"],
    }
    ran = run([PROGRAM, "--timeout", "60"], given)
    assert (ran.code, ran.out) == (0, "5\n"), ran.err
    assert len((tmp_path / "delivered").read_text().splitlines()) == 2
    for command in ("status", "status --json --steps", "forward", "show"):
        ran = run(f"import sys; sys.argv[1:] = {command.split()!r}\n{COMMAND}", given)
        assert ran.code == 0, ran.err
        assert "Traceback" not in ran.err
        assert json.loads(ran.out)[0]["recorded"] == 2 if "--json" in command else ran.out


@pytest.mark.parametrize("setting", ["spool_dir", "working_dir", "tokenizer"])
def test_path_that_process_cannot_encode_is_refused(setting: str, tmp_path: Path) -> None:
    """configure() names the argument, the encoding and the variables to set."""
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
    """An error names the variable, and spans are recorded."""
    ran = run([PROGRAM], {**TRACED, "OTEL_ROLLOUT_PROJECT": "\udcff", "OTEL_RESOURCE_ATTRIBUTES": "a=\udcff"})
    assert (ran.code, ran.out) == (0, "5\n")
    assert "OTEL_ROLLOUT_PROJECT='\\udcff' is not valid UTF-8; the default is used" in ran.err
    assert "OTEL_RESOURCE_ATTRIBUTES is not valid UTF-8" in ran.err
    assert "Traceback" not in ran.err


def test_output_of_libraries_does_not_enter_spool_files(tmp_path: Path) -> None:
    """If a program has closed its streams, no spool file gets their descriptors."""
    given = {**TRACED, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path)}
    ran = run([PROGRAM, "--library"], given, redirect="<&- >&- 2>&-")
    assert ran.code == 0
    contents = contents_below(tmp_path)
    assert any(path.name.endswith(".journal") for path in contents)
    assert not [path for path, content in contents.items() if b"printed by" in content]
