"""`otel-rollout status --check` where nothing can be recorded or read, and where a target refuses spans."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import otel_rollout
from tests.cli.command import run
from tests.cli.test_probe import checks_of, probe
from tests.faults.hostile import NOBODY
from tests.forwarder.test_delivery import node_directory, record
from tests.forwarders import wait_for_end
from tests.waits import set_waits

ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def probe_as_nobody(spool: Path, *, by_option: bool) -> str:
    """Run the command as another user, and return its output; it must fail with status 1."""
    probe()  # imports what the other user may not be able to read
    option = ["--spool", spool] if by_option else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(spool))
        os.seteuid(NOBODY)
        try:
            return probe(*option, code=1)
        finally:
            os.seteuid(0)


@pytest.fixture
def place() -> Path:
    """Return a directory that every user can reach and write to."""
    shared = Path(tempfile.mkdtemp())
    shared.chmod(0o1777)
    return shared


@ONLY_ROOT
@pytest.mark.parametrize("by_option", [True, False])
def test_place_in_which_nothing_can_be_recorded_is_unhealthy(place: Path, by_option: bool) -> None:
    """Tracing is off there, so a probe that says healthy would say so for ever."""
    hidden = place / "hidden"
    (hidden / "below").mkdir(parents=True)
    hidden.chmod(0)
    assert "cannot be read: Permission denied" in probe_as_nobody(hidden, by_option=by_option)
    found = probe_as_nobody(hidden / "below", by_option=by_option)
    assert checks_of(found) == ["spool"]
    locked = place / "locked"
    locked.mkdir(mode=0o755)
    assert "is not writable for" in probe_as_nobody(locked, by_option=by_option)
    missing = probe_as_nobody(locked / "missing", by_option=by_option)
    assert ("does not exist" if by_option else "cannot be made") in missing
    taken = place / "taken"
    taken.mkdir()
    os.chown(taken, NOBODY + 1 if NOBODY < 65535 else 1, -1)
    taken.chmod(0o777)
    assert "belongs to user id" in probe_as_nobody(taken, by_option=by_option)


@ONLY_ROOT
@pytest.mark.parametrize("depth", [1, 2])
def test_directory_of_this_user_that_cannot_be_read_is_unhealthy(place: Path, depth: int) -> None:
    """A run behind it may have spans that nobody delivers."""
    spool = place / "spool"
    (spool / "run" / "node").mkdir(parents=True)
    for path in (spool, spool / "run", spool / "run" / "node"):
        os.chown(path, NOBODY, NOBODY)
    closed = spool / "run" if depth == 1 else spool / "run" / "node"
    closed.chmod(0)
    assert probe_as_nobody(spool, by_option=True) == f"spool: {closed} cannot be read: Permission denied\n"


def test_refused_spans_ask_for_a_person_and_not_for_a_forwarder(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liveness probe restarts no sidecar whose forwarder has ended because the target answers 401."""
    set_waits(monkeypatch, missing_forwarder=0.0)
    fault = target.with_name(target.name + ".fault")
    fault.write_text("refused")
    otel_rollout.configure({"test-faulty": {}}, forwarder_linger=0)
    record(3)
    otel_rollout.shutdown(5)
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    run("forward", code=1)
    assert checks_of(probe("--only", "forwarder")) == ["healthy"]
    output = probe(code=1)
    assert checks_of(output) == ["refused"]
    assert output.endswith(f"deliver with: `otel-rollout forward --spool {node_dir}`.\n")
    fault.unlink()
    run("forward")
    assert checks_of(probe()) == ["healthy"]
