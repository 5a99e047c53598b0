"""Test copies of node directories, made while writers write: no span is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.record.launch import transfer
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.spool import journal, layout, segments


def node_with_writer(directory: Path) -> SegmentWriter:
    layout.write_manifest(directory, layout.Manifest("run", "project", ("mlflow",)))
    return SegmentWriter(directory, {"service.name": "s"}, segment_bytes=3000)


def lines_in(directory: Path) -> list[bytes]:
    text = b"".join((directory / name.file).read_bytes() for name in layout.segments(directory))
    return [line.split(b'"scopeSpans":[{', 1)[1] for line in text.splitlines()]


@given(
    bursts=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    piece_bytes=st.integers(50, 4000),
    flushed=st.booleans(),
)
def test_copy_made_while_a_writer_writes_holds_every_line(
    bursts: list[int], piece_bytes: int, flushed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For any order of pieces and lines, the copy has all lines and their count."""
    origin, copy = tmp_path_factory.mktemp("origin"), tmp_path_factory.mktemp("copy")
    writer = node_with_writer(origin)
    written = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "PIECE_BYTES", piece_bytes)
        for burst in bursts:
            for _ in range(burst):
                assert writer.write(b"%06d" % written + b"x" * 100 + b"\n")
                written += 1
            if flushed:
                assert writer.flush(10)
            transfer.add_piece(copy, transfer.next_piece(origin, transfer.copied_bytes(copy)))
        for _ in range(10 + 200 * written):  # a line takes a few pieces at most
            piece = transfer.next_piece(origin, transfer.copied_bytes(copy))
            transfer.add_piece(copy, piece)
            if not piece.segments:
                break
    assert lines_in(copy) == [b"%06d" % n + b"x" * 100 for n in range(written)]
    (name,) = layout.journals(copy)
    state = journal.read_state(copy / (name + layout.JOURNAL_SUFFIX))
    assert state is not None
    assert state.recorded == written
    writer.close(10)


def test_incomplete_copy_counts_no_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted copy is delivered like any directory, and counts its own lines."""
    origin, copy = tmp_path / "origin", tmp_path / "copy"
    origin.mkdir()
    copy.mkdir()
    writer = node_with_writer(origin)
    for _ in range(10):
        assert writer.write(b"x" * 100 + b"\n")
    monkeypatch.setattr(transfer, "PIECE_BYTES", 500)
    transfer.add_piece(copy, transfer.next_piece(origin, {}))
    assert layout.node_directories(copy) == [copy]
    assert layout.journals(copy) == []
    writer.close(10)


def test_trajectory_open_during_the_copy_is_in_its_root_table(tmp_path: Path) -> None:
    """A trajectory that runs during the copy is open in the copy."""
    origin, copy = tmp_path / "origin", tmp_path / "copy"
    origin.mkdir()
    copy.mkdir()
    writer = node_with_writer(origin)
    assert writer.start_trajectory(lambda _: b"an unfinished line") is not None
    transfer.add_piece(copy, transfer.next_piece(origin, {}))
    transfer.add_piece(copy, transfer.next_piece(origin, transfer.copied_bytes(copy)))
    (name,) = layout.journals(copy)
    table = (copy / (name + layout.OPEN_SUFFIX)).read_bytes()
    assert b"an unfinished line" in table
    assert segments.is_dead(copy, name)
    writer.close(10)
