"""Make lines of model calls like the recorder's; restore prompts from spans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from otel_rollout.base import semconv
from otel_rollout.otlp import writer
from otel_rollout.record.recording.tokenizers import Tokenizers
from otel_rollout.turns.context_diff import restored
from otel_rollout.turns.detokenizer import Detokenizer
from otel_rollout.turns.line_rewriter import LineRewriter

DEMO = Path(__file__).parents[2] / "examples" / "otel_rollout_demo" / "data" / "tokenizer"
HEAD = writer.resource_head({semconv.SEGMENT_ID: "s"})
SCOPE = writer.scope_head("otel_rollout", None, None, None)


def stored(node_dir: Path, tokenizer: Any) -> str:
    """Store a tokenizer in a node directory; return its name."""
    tokenizers = Tokenizers(node_dir)
    name = tokenizers.name_of(tokenizer)
    tokenizers.finish(60)
    assert name is not None
    return name


def demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def line(
    number: int,
    given: Any,
    result: Any,
    *,
    span: tuple[int, int] | None = None,
    tokenizer: str | None = None,
    trace: int = 1,
    kind: str = semconv.KIND_LLM,
    text_of: int | None = None,
) -> bytes:
    """Make a line of span ``number``, which ends before span ``number + 1`` starts."""
    attributes = {
        semconv.SPAN_KIND: kind,
        semconv.INPUT_MIME_TYPE: semconv.JSON_MIME_TYPE,
        semconv.INPUT_VALUE: orjson.dumps(given).decode(),
        semconv.OUTPUT_MIME_TYPE: semconv.JSON_MIME_TYPE,
        semconv.OUTPUT_VALUE: orjson.dumps(result).decode(),
        **({} if tokenizer is None else {semconv.TOKENIZER: tokenizer}),
        **({} if text_of is None else {semconv.TEXT_OF: f"{text_of:016x}"}),
    }
    pieces = writer.line(
        SCOPE,
        writer.head_below(b"%032x" % trace, b"", 1),
        b"%016x" % number,
        b'"generate"',
        1,
        *(span or (10 * number, 10 * number + 5)),
        [writer.attribute_list(attributes)],
    )
    return b"".join((HEAD, *pieces))


class ExportedSpan:
    """The span of a line, as an exporter gets it."""

    def __init__(self, line: bytes) -> None:
        data = orjson.loads(line)
        (span,) = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
        self.id = span["spanId"]
        self.attributes = {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}
        self.input = orjson.loads(self.attributes[semconv.INPUT_VALUE])
        self.output = orjson.loads(self.attributes[semconv.OUTPUT_VALUE])


def exported_by(rewriter: LineRewriter, line: bytes) -> ExportedSpan:
    """Rewrite a line; return its span."""
    return ExportedSpan(rewriter.rewrite(line).encoded)


def counted_tokens(patches: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of tokens of each decoding from now on."""
    counts: list[int] = []
    decode = Detokenizer._decoded

    def counting(self: Detokenizer, ids: Sequence[int]) -> str:
        counts.append(len(ids))
        return decode(self, ids)

    patches.setattr(Detokenizer, "_decoded", counting)
    return counts


def prompts(exported: list[ExportedSpan]) -> dict[str, list[int]]:
    """Restore the prompts of all model calls from exported spans alone."""
    by_id = {call.id: call for call in exported}

    def prompt(call: ExportedSpan) -> list[int]:
        given = call.input["prompt_ids"]
        if isinstance(given, list):
            return given
        before = by_id[given["continues"]]
        whole = restored([*prompt(before), *before.output["token_ids"]], given["shared"], given["new"])
        assert len(whole) == given["length"] == int(call.attributes[semconv.TURN_LENGTH])
        return whole

    return {call.id: prompt(call) for call in exported}
