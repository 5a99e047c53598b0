"""Broken prefixes: turns whose tokens are not the beginning of the next prompt are named, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from otel_rollout.base import semconv
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.forwarder.planted_breaks import Break, Planted, planted_breaks
from tests.forwarder.tokens_support import exported_by, line, stored


def breaks_in(rewriter: LineRewriter, lines: list[bytes]) -> dict[int, Break]:
    """Return what exporters get to know of breaks, by the number of the call after."""
    found: dict[int, Break] = {}
    for number, each in enumerate(lines, start=1):
        said: Any = exported_by(rewriter, each).attributes
        if semconv.BREAK_OF in said:
            found[number] = Break(
                int(said[semconv.BREAK_OF], 16),
                int(said[semconv.BREAK_TOKEN]),
                int(said[semconv.BREAK_REMOVED]),
                int(said.get(semconv.BREAK_ADDED, -1)),
                said[semconv.BREAK_KIND],
            )
    return found


@given(planted=planted_breaks())
def test_exactly_the_planted_breaks_are_found(planted: Planted) -> None:
    """Each planted break is found at its token, and nothing else is one."""
    lines = [
        line(number, {"prompt_ids": call.prompt}, {"token_ids": call.answer})
        for number, call in enumerate(planted.calls, start=1)
    ]
    assert breaks_in(LineRewriter(Path()), lines) == planted.breaks


@given(planted=planted_breaks())
def test_break_that_is_told_stays_when_a_line_is_rewritten_again(planted: Planted) -> None:
    """An import of delivered lines has references in place of earlier prompts."""
    lines = [
        line(number, {"prompt_ids": call.prompt}, {"token_ids": call.answer})
        for number, call in enumerate(planted.calls, start=1)
    ]
    first = LineRewriter(Path())
    delivered = [first.rewrite(each).encoded for each in lines]
    assert breaks_in(LineRewriter(Path()), delivered) == planted.breaks


SYSTEM, FIRST, SECOND = list(range(100, 140)), list(range(200, 220)), list(range(300, 320))
END = 5


def calls(*given: tuple[list[int], list[int]], tokenizer: str | None = None) -> list[bytes]:
    return [
        line(number, {"prompt_ids": prompt}, {"token_ids": answer}, tokenizer=tokenizer)
        for number, (prompt, answer) in enumerate(given, start=1)
    ]


HARMLESS = {
    "the end token is dropped": [(SYSTEM, [*FIRST, END]), ([*SYSTEM, *FIRST, 7, 8, 9], [1])],
    "the end token is another": [(SYSTEM, [*FIRST, END]), ([*SYSTEM, *FIRST, 6, 7, 8, 9], [1])],
    "the end token is added": [(SYSTEM, FIRST), ([*SYSTEM, *FIRST, END, 7, 8, 9], [1])],
    "twenty answers to one prompt": [
        *((SYSTEM, [2, *range(1000 * each, 1000 * each + 10)]) for each in range(1, 21)),
        ([*SYSTEM, 2, *range(1000, 1010), 7], [1]),
    ],
    "a judge that quotes the answer": [
        ([*SYSTEM, 7, 8, 9], FIRST),
        ([*SYSTEM[:30], 10, 11, *FIRST, 12], [1]),
    ],
    "a subagent, and then the agent again": [
        (SYSTEM, FIRST),
        ([*SYSTEM[:20], *range(400, 430)], SECOND),
        ([*SYSTEM, *FIRST, 7], [1]),
    ],
    "another sample of one prompt": [(SYSTEM, FIRST), (SYSTEM, SECOND), ([*SYSTEM, *SECOND, 7], [1])],
    "a step back": [
        (SYSTEM, FIRST),
        ([*SYSTEM, *FIRST, 7, 8], SECOND),
        ([*SYSTEM, *FIRST, 7, 9], [1]),
    ],
    "a prompt with a placeholder of an image": [(SYSTEM, FIRST), ([*SYSTEM[:9], "<image>", *FIRST], [1])],
    "a prompt that the recorder cut": [(SYSTEM, FIRST), ([*SYSTEM[:9], "… (70 more items)"], [1])],
    "an answer that the recorder cut": [(SYSTEM, [1, "… (70 more items)"]), ([*SYSTEM, 3, 4], [1])],
}


@pytest.mark.parametrize("case", HARMLESS)
def test_prompt_that_follows_another_turn_or_none_is_no_break(case: str) -> None:
    """Neither a template's end token nor another conversation or sample breaks a prefix."""
    given: Any = HARMLESS[case]
    assert breaks_in(LineRewriter(Path()), calls(*given)) == {}


def test_prompts_of_one_broken_context_are_one_break() -> None:
    """A second sample of a prompt repeats what the first one has changed."""
    broken = [*SYSTEM[:9], 7, *SYSTEM[10:], *FIRST, 8]
    found = breaks_in(LineRewriter(Path()), calls((SYSTEM, FIRST), (broken, SECOND), (broken, [1, 2, 3])))
    assert found == {2: Break(1, 9, 1, 1, "beginning")}


def test_simultaneous_turns_are_compared_with_what_had_ended() -> None:
    """Two agents answer at a time; the context of one is changed."""
    other = [*range(500, 540)]
    spans = [(10, 20), (11, 30), (25, 40), (35, 50)]
    given = [(SYSTEM, FIRST), (other, SECOND), ([*SYSTEM[:9], 7, *SYSTEM[10:], *FIRST, 8], [1])]
    given.append(([*other, *SECOND, 9], [1]))
    lines = [
        line(number, {"prompt_ids": prompt}, {"token_ids": answer}, span=span)
        for number, ((prompt, answer), span) in enumerate(zip(given, spans, strict=True), start=1)
    ]
    assert breaks_in(LineRewriter(Path()), lines) == {3: Break(1, 9, 1, 1, "beginning")}


def test_reasoning_that_a_template_drops_is_cut() -> None:
    """Only the rest of the answer stays in the next prompt; a later prompt drops that of the second turn."""
    second = [*SYSTEM, *FIRST[10:], 7, 8]
    given = calls((SYSTEM, FIRST), (second, SECOND), ([*second, *SECOND[12:], 9], [1]))
    assert breaks_in(LineRewriter(Path()), given) == {
        2: Break(1, 40, 10, 0, "cut"),
        3: Break(2, 52, 12, 0, "cut"),
    }


def test_answer_that_was_replaced_is_an_edit() -> None:
    """Nothing behind the difference is in the prompt, so the number of new tokens is unknown."""
    given = calls((SYSTEM, FIRST), ([*SYSTEM, 7, 8, 9], [1]))
    assert breaks_in(LineRewriter(Path()), given) == {2: Break(1, 40, 20, -1, "edited")}


@pytest.mark.parametrize(
    ("text", "sampled", "removed", "added"),
    [
        ("hello", ["hel", "lo", "<|im_end|>"], 2, 1),
        ("hello world", ["h", "ello", " world", "<|im_end|>"], 2, 1),
        ("hello", ["hel", "lo"], 2, 1),  # the last tokens, which may differ if their text does
    ],
)
def test_retokenization_is_known_by_its_text(
    tmp_path: Path, text: str, sampled: list[str], removed: int, added: int
) -> None:
    """A byte-pair tokenizer encodes the text of sampled tokens to others."""
    tokenizer = byte_pairs()
    name = stored(tmp_path, tokenizer)
    answer = [tokenizer.token_to_id(token.replace(" ", "Ġ")) for token in sampled]
    again = tokenizer.encode(text).ids
    assert tokenizer.decode(answer) == text
    assert again != answer[: len(again)]
    prompt = tokenizer.encode("a question " * 12).ids
    ended = [*prompt, *again, tokenizer.token_to_id("<|im_end|>"), *tokenizer.encode(" and more").ids]
    lines = calls((prompt, answer), (ended, [1, 2, 3, 4]), tokenizer=name)
    rewriter = LineRewriter(tmp_path)
    assert breaks_in(rewriter, lines) == {2: Break(1, len(prompt), removed, added, "retokenized")}
    said: Any = exported_by(rewriter, lines[1]).attributes
    assert said[semconv.BREAK_WAS].replace("|", "") == said[semconv.BREAK_BECAME].replace("|", "")


def byte_pairs() -> Tokenizer:
    """Train a small byte-level tokenizer; ``hello`` is one of its tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["hello world", "hel lo", "ello hello", "a question and more"] * 20, trainer
    )
    return tokenizer
