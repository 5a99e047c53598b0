"""Test that an exporter's lines depend on no other exporter and no restart."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv
from otel_rollout.deliver.lines import CACHE_BYTES, LineCache
from otel_rollout.spool.layout import SegmentName
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.forwarder.test_token_delivery import delivered
from tests.forwarder.tokens_support import DEMO, ExportedSpan, demo_tokenizer, exported_by, line, stored
from tests.waiting import wait_for

SEGMENT: Final = SegmentName("1-00000000000000aa", 1)
IMAGE: Final = "data:image/png;base64," + "iVBORw0KGgo" * 200


def trajectories(tokenizer: str, count: int) -> list[bytes]:
    """Make lines of a trace with several trajectories: parallel calls, then roots."""
    encoded = demo_tokenizer().encode
    calls, roots = [], []
    for number in range(1, count + 1):
        asked = [*range(100, 140), number]
        output = {"token_ids": encoded(f"The answer is {number}.").ids}
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]
        given = {"prompt_ids": asked, "messages": messages}
        calls.append(line(number, given, output, tokenizer=tokenizer, span=(number, 100 + number)))
        further = {"prompt_ids": [*asked, *output["token_ids"], 7]}
        later = 1000 + number
        calls.append(line(later, further, output, tokenizer=tokenizer, span=(200 + number, 300 + number)))
        root = {"kind": semconv.KIND_AGENT, "text_of": later, "span": (0, 400 + number)}
        roots.append(line(2000 + number, {}, output, **root))
    return [
        raw.replace(b'"stringValue":"s"', b'"stringValue":"%b"' % SEGMENT.stem.encode())
        for raw in [*calls, *roots]
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes], list[bytes]]:
    """Return a node directory, its lines, and the lines that an only exporter gets."""
    node_dir = tmp_path_factory.mktemp("node")
    lines = trajectories(stored(node_dir, demo_tokenizer()), 5)
    (node_dir / SEGMENT.file).write_bytes(b"".join(lines))
    alone = LineRewriter(node_dir)
    return node_dir, lines, [alone.rewrite(raw).encoded for raw in lines]


@given(data=st.data(), max_bytes=st.sampled_from([0, 20_000, CACHE_BYTES]))
def test_exporters_at_any_pace_get_the_lines_of_an_only_exporter(
    data: st.DataObject, max_bytes: int, run: Any
) -> None:
    """An exporter ahead, behind or reading again gets the bytes it would get alone."""
    node_dir, lines, expected = run
    cache = LineCache(node_dir, LineRewriter(node_dir).rewrite, max_bytes)
    readers, positions = [cache.reader() for _ in range(3)], [0] * 3
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    for reader in data.draw(st.lists(st.integers(0, 2), max_size=60)):
        if positions[reader] < len(lines):
            (line,) = itertools.islice(readers[reader].read(SEGMENT, starts[positions[reader]], 1), 1)
            assert line.exported.encoded == expected[positions[reader]]
            positions[reader] += 1
        if (
            data.draw(st.booleans()) and positions[reader]
        ):  # after an interruption the exporter reads lines again
            positions[reader] -= data.draw(st.integers(0, min(3, positions[reader])))
    for reader, position in zip(readers, positions, strict=True):
        rest = reader.read(SEGMENT, starts[position], sys.maxsize)
        assert [line.exported.encoded for line in rest] == expected[position:]


@given(data=st.data())
def test_root_shows_its_answer_after_a_restart(data: st.DataObject, run: Any) -> None:
    """The next forwarder reads the answer from the segment."""
    node_dir, lines, expected = run
    restarts = data.draw(st.sets(st.integers(0, len(lines)), max_size=5))
    rewriter, exported = LineRewriter(node_dir), []
    for position, raw in enumerate(lines):
        if position in restarts:
            rewriter = LineRewriter(node_dir)
        exported.append(exported_by(rewriter, raw))
    for mine, alone in zip(exported, map(ExportedSpan, expected), strict=True):
        assert mine.output == alone.output or "prompt_text" in mine.output
        assert mine.output["response_text"] == alone.output["response_text"]


def test_root_whose_answer_is_gone_has_no_text(run: Any, tmp_path: Path) -> None:
    """If the answer's segment was removed, the root is exported as recorded."""
    _, lines, _ = run
    exported = exported_by(LineRewriter(tmp_path), lines[-1])
    assert exported.output == ExportedSpan(lines[-1]).output
    assert semconv.TEXT_OF not in exported.attributes


def test_one_trace_takes_a_quarter_of_the_memory_at_most(tmp_path: Path) -> None:
    """A growing trace is forgotten and started again; other traces keep their memory."""
    rewriter = LineRewriter(tmp_path, memory=100_000)
    other = line(1, {"prompt_ids": list(range(30))}, {"token_ids": [1]}, trace=2)
    rewriter.rewrite(other)
    for number in range(1, 200):
        prompt = [number, *range(1000)]
        rewriter.rewrite(line(number, {"prompt_ids": prompt}, {"token_ids": [1]}, trace=1))
        assert rewriter._traces._total <= 100_000
    following = line(2, {"prompt_ids": [*range(30), 1, 5]}, {"token_ids": [1]}, trace=2)
    assert exported_by(rewriter, following).input["prompt_ids"]["shared"] == 31


def test_exporter_that_was_away_gets_equal_lines(
    fresh_process: None, test_exporters: None, tmp_path: Path
) -> None:
    """One target takes all spans at once; the other later, and rejects one span."""
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    fault = Path(f"{behind}.fault")
    fault.write_text("unavailable")
    targets = {"test-file": {"path": str(ahead)}, "test-faulty": {"path": str(behind)}}
    otel_rollout.configure(targets, token2text=True, tokenizer=str(DEMO))
    ids = demo_tokenizer().encode("A scarf takes two balls of wool.").ids

    @rollout_trace_op(kind="LLM", name="generate")
    def generate(prompt_ids: list[int]) -> dict[str, Any]:
        return {"token_ids": [*ids, *prompt_ids[-1:]]}

    @rollout_trace_op(name="poison")
    def rejected() -> None: ...

    @rollout_trace_op(name="step")
    def step() -> None:
        for number in range(1, 40):
            with rollout_trace_attr(step=1, sample_index=number, name="generate"):
                generate([*range(100, 140), number])
        rejected()

    step()
    wait_for(lambda: ahead.exists() and len(delivered(ahead)) == 78, what="the one that is ahead")
    fault.unlink()
    report = otel_rollout.shutdown(60)
    assert report.exporters["test-faulty"].rejected == 1
    outputs = [{span.id: span.output for span in delivered(path)} for path in (ahead, behind)]
    assert outputs[0] == outputs[1]
    assert all("response_text" in output for output in outputs[0].values())
