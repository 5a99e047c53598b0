"""Test the directory names of run ids of any script and length."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.spool import layout

SPOOL = Path("spool")


def directory(run_id: str) -> str:
    """Return the name of a run's directory."""
    return layout.node_directory(SPOOL, run_id, "node").parent.name


any_id = st.text(st.characters(), min_size=1, max_size=300) | st.text("._-~/实验é", min_size=1, max_size=8)


@given(any_id, any_id)
def test_distinct_ids_have_distinct_directories(one: str, other: str) -> None:
    """Ids may consist of any characters, and equal ids have one directory."""
    assert (directory(one) == directory(other)) is (one == other)


@given(any_id)
def test_every_id_is_a_valid_file_name(run_id: str) -> None:
    """The name is one visible component of up to 255 ASCII bytes, also for a copy."""
    for name in (directory(run_id), layout.node_directory(SPOOL, "run", run_id + layout.COPY_SUFFIX).name):
        assert name.isascii()
        assert 0 < len(name) <= 255
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")


@given(st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=255))
def test_id_of_plain_characters_is_its_directory(run_id: str) -> None:
    """The directory's name has no digest then."""
    assert directory(run_id) == run_id


@pytest.mark.parametrize("run_id", ["实验甲", "実験", "эксперимент", "a" * 300, "a/b", "..", "é"])
def test_run_with_unusual_id_is_delivered_and_its_manifest_has_the_id(
    run_id: str, fresh_process: None, test_exporters: None, tmp_path: Path
) -> None:
    """The run's spans arrive, and listings show the original id."""
    path = os.environ["OTEL_ROLLOUT_SPOOL_DIR"] + "-delivered.jsonl"
    otel_rollout.configure({"test-file": {"path": path}}, run_id=run_id)
    with rollout_trace_attr(step=1):
        pass
    report = otel_rollout.shutdown(30)
    assert (report.recorded, report.undelivered) == (1, 0)
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    manifest = layout.read_manifest(node_dir)
    assert manifest is not None
    assert manifest.run_id == run_id
