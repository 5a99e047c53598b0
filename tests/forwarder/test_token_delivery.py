"""Test what a forwarder exports, archives and replays of decoded text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.cli.runs import as_node_directory
from otel_rollout.deliver import forwarder
from otel_rollout.record.launch import transfer
from otel_rollout.settings import Settings
from otel_rollout.spool import layout
from otel_rollout.spool.layout import SegmentName
from tests.cli.command import run
from tests.forwarder.tokens_support import DEMO, demo_tokenizer, line, prompts, stored
from tests.forwarders import wait_for_end
from tests.spool_reader import read_directory

pytestmark = pytest.mark.usefixtures("forwarder")

TEXT = "A scarf takes two balls of wool, so she needs sixty of them."


class Model:
    """A model that answers with ``TEXT``."""

    tokenizer: Any = None

    @rollout_trace_op(kind="LLM", name="generate")
    def generate(self, prompt_ids: list[int]) -> dict[str, Any]:
        return {"token_ids": demo_tokenizer().encode(TEXT).ids}


def converse(model: Model, turns: int = 3) -> list[list[int]]:
    """Record a trajectory, and return its prompts."""
    ids = demo_tokenizer().encode(TEXT).ids
    given = []
    with rollout_trace_attr(step=1):
        for turn in range(turns):
            given.append(ids * (2 * turn + 1))
            model.generate(given[-1])
    return given


class Delivered:
    """A delivered span."""

    def __init__(self, line: str) -> None:
        self.id, self.name, self.attributes = json.loads(line)
        self.input = json.loads(self.attributes.get("input.value", "null"))
        self.output = json.loads(self.attributes.get("output.value", "null"))


def delivered(path: Path) -> list[Delivered]:
    spans = [Delivered(line) for line in path.read_text().splitlines()]
    return [span for span in spans if span.name == "generate"]


def test_archive_holds_what_was_recorded_and_replay_decodes_again(
    tracing: None, tmp_path: Path, monkeypatch: Any
) -> None:
    """The archive has neither decoded text nor references between turns."""
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "replayed.jsonl"))
    otel_rollout.configure(
        {"test-file": {"path": str(tmp_path / "delivered.jsonl")}},
        token2text=True,
        tokenizer=str(DEMO),
        keep=True,
    )
    given = converse(Model())
    report = otel_rollout.shutdown(60)
    assert (report.undelivered, report.lost) == (0, 0)
    first = delivered(tmp_path / "delivered.jsonl")
    kept = [span for span in read_directory(tmp_path / "spool") if span.name == "generate"]
    assert [span.input["prompt_ids"] for span in kept] == given
    assert all("response_text" not in span.output for span in kept)
    wait_for_end(Path(report.directory))
    run("replay", Path(report.directory) / layout.ARCHIVE, "--to", "test-file")
    again = delivered(tmp_path / "replayed.jsonl")
    for spans in (first, again):
        assert list(prompts(spans).values()) == given
        assert [span.output["response_text"] for span in spans] == [TEXT] * 3
        assert [type(span.input["prompt_ids"]) for span in spans] == [list, dict, dict]


def test_token2text_of_trajectory_and_operation_override_the_setting(tracing: None, tmp_path: Path) -> None:
    """An operation's value takes precedence over its trajectory's."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered.jsonl")}}, token2text=True)
    model = Model()
    model.tokenizer = demo_tokenizer()
    ids = demo_tokenizer().encode(TEXT).ids
    always = rollout_trace_op(name="generate", kind="LLM", token2text=True)(
        lambda prompt_ids: {"token_ids": ids}
    )

    class Teller:
        tokenizer = model.tokenizer

        @rollout_trace_op(name="generate", token2text=True)
        def generate(self) -> dict[str, Any]:
            return {"token_ids": ids}

    with rollout_trace_attr(step=1, token2text=False):
        model.generate(ids)
        Teller().generate()
        always(ids)  # has no object with a tokenizer
    with rollout_trace_attr(step=2):
        model.generate(ids)
    otel_rollout.shutdown(60)
    exported = ["response_text" in span.output for span in delivered(tmp_path / "delivered.jsonl")]
    assert exported == [False, True, False, True]


def test_tokenizers_are_copied_before_segments(tmp_path: Path) -> None:
    """A copy gets tokenizers, as private files, before segments that name them."""
    origin, copy = tmp_path / "origin", tmp_path / "copy"
    origin.mkdir()
    copy.mkdir()
    layout.write_manifest(origin, layout.Manifest("run", "project", ("mlflow",)))
    name = stored(origin, demo_tokenizer())
    transfer.add_piece(copy, transfer.next_piece(origin, {}))
    (copied,) = layout.tokenizer_files(copy)
    assert copied == layout.tokenizer_file(copy, name)
    assert copied.read_bytes() == layout.tokenizer_file(origin, name).read_bytes()
    assert (copied.stat().st_mode & 0o777, copied.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_replay_ignores_a_linked_tokenizer(tmp_path: Path) -> None:
    """A link could lead to any file: it is not followed."""
    place = tmp_path / "place"
    place.mkdir()
    ours, theirs = stored(tmp_path, demo_tokenizer()), "f" * 32
    stored(place, demo_tokenizer())
    layout.tokenizer_file(place, theirs).symlink_to(layout.tokenizer_file(tmp_path, ours))
    (place / "lines.jsonl").write_text("{}\n")
    with as_node_directory([place / "lines.jsonl"], Settings(spool_dir=tmp_path / "spool")) as node_dir:
        assert [path.stem for path in layout.tokenizer_files(node_dir)] == [ours]


def test_redaction_that_cannot_be_imported_costs_the_text_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """The redaction's module may need variables that the forwarder lacks."""
    (tmp_path / "redaction_of_a_job.py").write_text("import os\nos.environ['ONLY_IN_THE_JOB']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    configured = Settings(redact="redaction_of_a_job:redact")
    segment = SegmentName("1-00000000000000aa", 1)
    (tmp_path / segment.file).write_bytes(recorded := line(1, {}, {"token_ids": [1]}, tokenizer="any"))
    (delivered_line,) = forwarder._line_cache(tmp_path, configured).reader().read(segment, 0, 1)
    assert delivered_line.exported.encoded == recorded


def test_turns_given_to_configure_reach_exporters(
    fresh_process: None, test_exporters: None, tmp_path: Path
) -> None:
    """With turns="all" an exporter gets only the messages that are new in a turn."""
    target = tmp_path / "delivered.jsonl"
    otel_rollout.configure({"test-file": {"path": str(target)}}, turns="all")

    @rollout_trace_op(kind="LLM", name="generate")
    def generate(messages: list[dict[str, str]]) -> str:
        return "answer"

    first = [{"role": "user", "content": "first"}]
    second = {"role": "user", "content": "second"}
    with rollout_trace_attr(step=1):
        generate(first)
        generate([*first, second])
    otel_rollout.shutdown(30)
    assert [span.input["messages"] for span in delivered(target)] == [first, [second]]
