"""Several exporters of a forwarder: what each gets depends on no other, on no batch and on no restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv
from otel_rollout.forwarder import forwarder
from otel_rollout.forwarder.enrichment import Enrichment
from otel_rollout.settings import Settings
from otel_rollout.spool.layout import SegmentName
from tests.forwarder.test_token_delivery import delivered
from tests.forwarder.tokens_support import DEMO, Told, demo_tokenizer, line, stored
from tests.waiting import wait_for

SEGMENT: Final = SegmentName("1-00000000000000aa", 1)
IMAGE: Final = "data:image/png;base64," + "iVBORw0KGgo" * 200
EXPORTERS: Final = ("mlflow", "weave", "otlp")


def trajectories(tokenizer: str, count: int) -> list[bytes]:
    """The lines of a trace with several trajectories in it: their calls side by side, then their roots."""
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
    """A node directory, the lines in its segment, and what an exporter gets that is alone."""
    node_dir = tmp_path_factory.mktemp("node")
    lines = trajectories(stored(node_dir, demo_tokenizer()), 5)
    (node_dir / SEGMENT.file).write_bytes(b"".join(lines))
    alone = Enrichment(node_dir)
    return node_dir, lines, [alone.line(raw) for raw in lines]


def enrichments(node_dir: Path) -> list[Enrichment]:
    """As a forwarder makes them for its exporters."""
    made = forwarder._enrichments(node_dir, Settings(exporters={name: {} for name in EXPORTERS}))
    return [made[name] for name in EXPORTERS]


@settings(max_examples=60)
@given(data=st.data())
def test_each_exporter_gets_what_it_would_alone(data: st.DataObject, run: Any) -> None:
    """Whoever is ahead, behind or away, and whoever has to have lines again, gets the same bytes."""
    node_dir, lines, expected = run
    readers, positions = enrichments(node_dir), [0] * len(EXPORTERS)
    for reader in data.draw(st.lists(st.integers(0, len(EXPORTERS) - 1), max_size=60)):
        if positions[reader] < len(lines):
            assert readers[reader].line(lines[positions[reader]]) == expected[positions[reader]]
            positions[reader] += 1
        if data.draw(st.booleans()) and positions[reader]:  # its target did not answer: once more
            positions[reader] -= data.draw(st.integers(0, min(3, positions[reader])))
    for reader, position in enumerate(positions):
        assert [readers[reader].line(raw) for raw in lines[position:]] == expected[position:]


@settings(max_examples=40)
@given(data=st.data())
def test_a_root_shows_its_answer_after_a_restart(data: st.DataObject, run: Any) -> None:
    """Wherever a forwarder ends and another goes on: the answer is read again from the segment."""
    node_dir, lines, expected = run
    restarts = data.draw(st.sets(st.integers(0, len(lines)), max_size=5))
    enrichment, told = Enrichment(node_dir), []
    for position, raw in enumerate(lines):
        if position in restarts:
            enrichment = Enrichment(node_dir)
        told.append(Told(enrichment.line(raw)))
    for mine, alone in zip(told, map(Told, expected), strict=True):
        assert mine.output == alone.output or "prompt_text" in mine.output
        assert mine.output["response_text"] == alone.output["response_text"]


def test_an_answer_whose_span_is_gone_costs_the_text_alone(run: Any, tmp_path: Path) -> None:
    """Its segment was delivered and removed: the root is as it was recorded, without a word of text."""
    _, lines, _ = run
    told = Told(Enrichment(tmp_path).line(lines[-1]))
    assert told.output == Told(lines[-1]).output
    assert semconv.TEXT_OF not in told.attributes


def test_memory_is_shared_out_and_one_trace_has_a_part_of_it(tmp_path: Path, monkeypatch: Any) -> None:
    """All exporters stay within the bound together; a trace without end does not use up that of others."""
    monkeypatch.setattr(forwarder, "MEMORY_BYTES", 300_000)
    first, *others = enrichments(tmp_path)
    other = line(1, {"prompt_ids": list(range(30))}, {"token_ids": [1]}, trace=2)
    first.line(other)
    for number in range(1, 200):
        prompt = [number, *range(1000)]
        first.line(line(number, {"prompt_ids": prompt}, {"token_ids": [1]}, trace=1))
        assert first._size <= 100_000
    following = line(2, {"prompt_ids": [*range(30), 1, 5]}, {"token_ids": [1]}, trace=2)
    assert Told(first.line(following)).input["prompt_ids"]["shared"] == 31
    assert all(enrichment._size == 0 for enrichment in others)


def test_an_exporter_that_was_away_gets_the_same(
    fresh_process: None, test_exporters: None, tmp_path: Path
) -> None:
    """One target takes all at once, the other none of it until later, one span of it never."""
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
