"""`otel-rollout forward --to`: spans stay for the run's other targets; the exit status tells what is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout.cli import runs
from otel_rollout.settings import Settings
from otel_rollout.spool import layout
from tests.cli.command import run
from tests.forwarder.test_delivery import delivered, node_directory, record
from tests.forwarders import wait_for_end


@pytest.fixture
def fault(target: Path) -> Path:
    """Return the file whose content is the fault of the exporter test-faulty."""
    return target.with_name(target.name + ".fault")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a rollout table, to which the command `--to delta` delivers."""
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))
    return tmp_path / "table"


def ended_run(exporters: list[str], fault: Path, tmp_path: Path) -> Path:
    """Record 4 spans for targets of which test-faulty is down; return the directory without a forwarder."""
    fault.write_text("unavailable")
    otel_rollout.configure(exporters, forwarder_linger=0)
    record(3)
    otel_rollout.shutdown(0)
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    return node_dir


@pytest.mark.parametrize(
    "exporters", [["test-faulty"], ["test-file", "test-faulty"], ["spool", "test-faulty"]], ids=",".join
)
def test_spans_stay_until_each_target_of_the_run_has_them(
    fresh_process: None,
    test_exporters: None,
    table: Path,
    target: Path,
    fault: Path,
    tmp_path: Path,
    exporters: list[str],
) -> None:
    """`--to` delivers elsewhere, or to some targets; a later `forward` delivers to those that were down."""
    node_dir = ended_run(exporters, fault, tmp_path)
    output = run("forward", "--to", ",".join(["delta", *exporters[:-1]]))
    assert "4 delivered to delta, 0 pending" in output
    assert "Still pending for test-faulty, and kept on disk: 4 spans. Deliver with: " in output
    assert layout.segments(node_dir)
    fault.unlink()
    before = target.read_text() if target.exists() else ""
    output = run("forward")
    assert "4 delivered to test-faulty, 0 pending" in output
    assert "lost: 0" in output
    assert sorted(delivered(target).values()) == ([2] * 4 if before else [1] * 4)
    assert bool(layout.segments(node_dir)) == ("spool" in exporters)


def test_segments_are_archived_once_each_target_has_them(
    fresh_process: None,
    test_exporters: None,
    target: Path,
    fault: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that keeps its spans does not archive what a target still waits for."""
    monkeypatch.setenv("OTEL_ROLLOUT_KEEP", "true")
    node_dir = ended_run(["test-faulty"], fault, tmp_path)
    run("forward", "--to", "delta")
    assert layout.segments(node_dir)
    assert not (node_dir / layout.ARCHIVE).exists()
    fault.unlink()
    run("forward")
    assert not layout.segments(node_dir)
    assert [*(node_dir / layout.ARCHIVE).iterdir()]


@pytest.mark.parametrize(
    ("other", "is_misspelt"), [("not-installed", False), ("test-fautly", True)], ids=["unknown", "misspelt"]
)
def test_other_targets_that_nobody_can_load_may_need_every_segment(
    fresh_process: None,
    test_exporters: None,
    target: Path,
    fault: Path,
    tmp_path: Path,
    other: str,
    is_misspelt: bool,
) -> None:
    """A package that is not installed here may let another program read the spool; a typing error is told."""
    node_dir = ended_run(["test-faulty"], fault, tmp_path)
    manifest = layout.read_manifest(node_dir)
    assert manifest is not None
    (node_dir / layout.MANIFEST).unlink()
    layout.write_manifest(
        node_dir, layout.Manifest(manifest.run_id, manifest.project_name, (other, "test-faulty"))
    )
    fault.unlink()
    output = run("forward", "--to", "test-faulty")
    suffice = f"Remove {node_dir.parent} if other targets suffice"
    way_out = f"Did you mean 'test-faulty'? {suffice}" if is_misspelt else f"{suffice}, or install one"
    assert f"No package here has it. {way_out}\n" in output
    assert layout.segments(node_dir)


def test_reason_stays_after_a_delivery_to_another_target(
    fresh_process: None, test_exporters: None, target: Path, fault: Path, tmp_path: Path
) -> None:
    """`status` still says why the run's own target lacks the spans."""
    fault.write_text("refused")
    otel_rollout.configure(["test-faulty"])
    record(3)
    otel_rollout.shutdown(30)
    wait_for_end(node_directory(tmp_path))
    assert "4 delivered to test-file, 0 pending" in run("forward", "--to", "test-file")
    assert "as the test wishes" in run("status")


def test_run_that_is_delivered_is_not_tried_again(archived: Path) -> None:
    """A target that this environment lacks is no error of an old run; the line names the run."""
    output = run("forward")
    assert output == f"{archived}: 30 spans recorded; 30 delivered to test-file, 0 pending; lost: 0\n"


def test_replay_is_delivered_to_its_own_target_only(
    archived: Path, fault: Path, target: Path, table: Path, tmp_path: Path
) -> None:
    """`forward --to` another target leaves a replay that is pending; one to its target delivers it."""
    fault.write_text("refused")
    run("replay", archived / layout.ARCHIVE, "--to", "test-faulty", code=1)
    (replayed,) = (tmp_path / "spool").glob("replay-*/*")
    shutil.rmtree(archived)
    output = run("forward", "--to", "delta,test-file")
    assert f"{replayed} is skipped: it has a replay to test-faulty" in output
    assert not table.exists()
    assert not target.exists()
    assert runs.settings_of_run(replayed, Settings(), "delta,test-faulty").exporters == {"test-faulty": {}}
    fault.unlink()
    assert "30 delivered to test-faulty" in run("forward", "--to", "delta,test-faulty")
    assert set(delivered(target).values()) == {1}


def test_lost_spans_are_an_error_of_forward(
    fresh_process: None, test_exporters: None, target: Path, fault: Path, tmp_path: Path, table: Path
) -> None:
    """Segments that somebody has removed cannot be delivered, to no target."""
    node_dir = ended_run(["test-faulty"], fault, tmp_path)
    fault.unlink()
    for name in layout.segments(node_dir):
        (node_dir / name.file).unlink()
    for arguments in ((), ("--to", "delta")):
        output = run("forward", *arguments, code=1)
        assert f"Lost: 4 of 4 spans, not delivered to test-faulty and gone from {node_dir}" in output


def test_rejected_spans_are_an_error_of_forward_until_their_file_is_removed(
    fresh_process: None, test_exporters: None, target: Path, fault: Path, tmp_path: Path
) -> None:
    """The target refuses them for good, so a person has to act."""
    otel_rollout.configure(["test-faulty"])
    record(1, name="poison")
    otel_rollout.shutdown(30)
    file = node_directory(tmp_path) / "rejected.test-faulty.jsonl"
    assert f"Rejected spans are in {file}" in run("forward", code=1)
    file.unlink()
    run("forward")


def test_target_that_is_new_does_not_get_what_the_run_has_delivered_and_removed(
    archived: Path, table: Path
) -> None:
    """Those spans are not lost, and the command says so."""
    output = run("forward", "--to", "delta")
    assert "delta does not get 30 of 30 spans: delivered to test-file before, they are no longer in" in output
