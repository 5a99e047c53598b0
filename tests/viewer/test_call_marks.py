"""Marks of model calls: changed weights and broken prefixes, at the turn where they happen."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models

from otel_rollout.base import semconv
from otel_rollout.look.conversation import page, terminal
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.sources.private_table import asked_as_table
from otel_rollout.look.sources.reference import parse
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.forwarder.tokens_support import stored
from tests.viewer.reading import conversation_of
from tests.viewer.test_conversation import line, shown

PROMPT = list(range(100, 140))


def marks_of(conversation: Conversation) -> list[tuple[str, ...]]:
    return [turn.marks for turn in conversation.turns if turn.is_model_call]


def call(number: int, first: int | None, last: int | None, **more: Any) -> bytes:
    """Encode a model call with the versions of its weights."""
    given = {semconv.POLICY_VERSION_MIN: first, semconv.POLICY_VERSION_MAX: last}
    known = {name: version for name, version in given.items() if version is not None}
    return line(number, "a", "b", attributes=known, **more)


def test_changed_weights_are_marked_at_the_turn_where_they_change() -> None:
    """Between two turns, inside a turn, and after turns that say nothing of their weights."""
    calls = [
        call(2, 7, 7),
        call(3, 7, 7),
        call(4, 8, 8),
        call(5, None, None),
        call(6, 8, 10),
        call(7, 11, None),
    ]
    assert marks_of(shown(calls)) == [
        (),
        (),
        ("weights 7 → 8",),
        (),
        ("weights 8 → 10 within this answer",),
        ("weights 10 → 11",),
    ]


def test_answer_that_was_interrupted_says_after_how_many_tokens() -> None:
    """The engine's interruptions are events of the call's span."""
    event = {
        "name": semconv.INTERRUPTION,
        "timeUnixNano": "21",
        "attributes": [{"key": semconv.GEN_AI_USAGE_OUTPUT_TOKENS, "value": {"intValue": "120"}}],
    }
    assert marks_of(shown([call(2, 7, 8, events=[event])])) == [
        ("weights 7 → 8 within this answer, after 120 tokens of it",)
    ]


def small_tokenizer() -> Tokenizer:
    """A byte-pair tokenizer with one merge rule, so that some ids encode to other ids."""
    vocabulary = {character: index for index, character in enumerate("abcdefgh .")}
    vocabulary |= {"ab": 10, "cd": 11, "<|im_end|>": 12}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("c", "d")]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|im_end|>"])
    return tokenizer


def read_from_spool(directory: Path, lines: list[bytes]) -> Conversation:
    """Return the only trajectory of lines as they were recorded."""
    path = directory / "lines.jsonl"
    path.write_bytes(b"".join(each.rstrip() + b"\n" for each in lines))
    trace_id = spans_of(lines[0])[0].trace_id
    with asked_as_table(SpoolSource(path)) as source:
        assert source.find(parse(trace_id))
        return source.conversation(trace_id)


@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize("is_decoded", [False, True])
def test_retokenized_answer_is_marked_with_the_tokens_of_both_sides(
    tmp_path: Path, is_exported: bool, is_decoded: bool
) -> None:
    """The sampled tokens of an answer are not those to which its text is encoded."""
    tokenizer = small_tokenizer()
    name = stored(tmp_path, tokenizer)
    known = {"attributes": {semconv.TOKENIZER: name}} if is_decoded else {}
    prompt = tokenizer.encode("efgh " * 6).ids
    answer = [7, 0, 1, 11, 4, 12]  # h, a, b, cd, e: nobody merged a and b
    again = tokenizer.encode(tokenizer.decode(answer, skip_special_tokens=False)).ids
    assert again == [7, 10, 11, 4, 12]
    calls = [
        line(2, {"prompt_ids": prompt}, {"token_ids": answer}, **known),
        line(3, {"prompt_ids": [*prompt, *again, 5, 6]}, {"token_ids": [4, 12]}, **known),
    ]
    if is_exported:
        rewriter = LineRewriter(tmp_path)
        calls = [rewriter.rewrite(each).encoded for each in calls]
        found = conversation_of([span for each in calls for span in spans_of(each)])
    else:
        found = read_from_spool(tmp_path, calls)
    said = "tokens 31–32 of the previous context were re-encoded; now 1 token"
    assert marks_of(found) == [(), (f"{said}: “a|b” → “ab”" if is_decoded else said,)]
    output = io.StringIO()
    terminal.show(found, Console(file=output, width=200))
    assert f"! {said}" in output.getvalue()
    assert said in page.of_conversation(found)


ANSWER = list(range(200, 220))
BROKEN = {
    "cut": ([*PROMPT[:10], *PROMPT[30:], *ANSWER], "tokens 10–29 of the previous context were left out"),
    "one token": (
        [*PROMPT[:3], 7, *PROMPT[4:], *ANSWER],
        "token 3 of the previous context was changed, before the first answer; now 1 token",
    ),
    "added": (
        [*PROMPT[:3], 7, 8, *PROMPT[3:], *ANSWER],
        "2 tokens were added before token 3 of the previous context",
    ),
    "other answer": ([*PROMPT, 7, 8, 9], "tokens 40–59 of the previous context were changed"),
    "thinking": ([*PROMPT, *ANSWER[12:]], "tokens 40–51 of the previous context were left out"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_prefix_is_said_in_one_line(tmp_path: Path, kind: str) -> None:
    """The line says which tokens differ, and how."""
    context, said = BROKEN[kind]
    calls = [
        line(2, {"prompt_ids": PROMPT}, {"token_ids": ANSWER}),
        line(3, {"prompt_ids": [*context, 5, 6, 7, 8]}, {"token_ids": [9]}),
    ]
    assert marks_of(read_from_spool(tmp_path, calls)) == [(), (said,)]
