"""Test decoding in parts (segments, turns): no character is lost at a border."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from otel_rollout.turns.detokenizer import UNFINISHED, Detokenizer
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.forwarder.tokens_support import demo_tokenizer, exported_by, line, stored

TEXTS: Final = {
    "Chinese": "模型先读题目，再调用计算器。答案是四十二。",
    "Japanese": "計算機を呼び出して、答えは４２です。ありがとう！",
    "emoji": "👍🏽 ok 👩‍👩‍👧‍👦🇩🇪🙂🙂 done 🧮",
    "combining": "e\u0301a\u0308 n\u0303o क्षि ที่นี่ 각",
    "replacement": "a\ufffdb \ufffd\ufffd\ufffd\ufffd 你\ufffd好",
    "mixed": "What is 6 × 7? 答え: 42 ✓ <|im_end|>\n",
}
CORPUS: Final = Path(__file__).parents[2] / "LICENSE"


def _with_bytes(decoder: Any) -> Tokenizer:
    """Return a tokenizer with an ASCII vocabulary; other characters become bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([CORPUS.read_text()], trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    return tokenizer


def llama() -> Tokenizer:
    """Return a tokenizer like Llama 2: decoding strips the first blank."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return _with_bytes(decoders.Sequence(steps))


def gemma() -> Tokenizer:
    """Return a tokenizer like Gemma: decoding strips nothing."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _with_bytes(decoders.Sequence(steps))


def byte_level() -> Tokenizer:
    """Return a tokenizer like GPT; some of its merges join bytes of two characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text[1:] for text in TEXTS.values()], trainer)
    return tokenizer


TOKENIZERS: Final = {"llama": llama, "gemma": gemma, "byte level": byte_level, "demo": demo_tokenizer}


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return TOKENIZERS[kind]()


@functools.cache
def decoder_of(kind: str) -> Detokenizer:
    return Detokenizer(tokenizer_of(kind))


def whole(kind: str, ids: list[int]) -> str:
    return str(tokenizer_of(kind).decode(ids, skip_special_tokens=False))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_two_parts_of_a_text_are_the_text(kind: str, text: str) -> None:
    """A text may be split between characters or within one."""
    ids = tokenizer_of(kind).encode(text).ids
    expected = whole(kind, ids)
    for border in range(len(ids) + 1):
        parts = [decoder_of(kind).part(ids, 0, border), decoder_of(kind).part(ids, border, len(ids))]
        assert "".join(parts) == expected, border
        assert sum(part.count(UNFINISHED) for part in parts) == expected.count(UNFINISHED)


@given(data=st.data())
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_any_number_of_parts_of_a_text_are_the_text(kind: str, data: st.DataObject) -> None:
    """Parts may be segments of an answer, or turns that each resend the last."""
    text = data.draw(
        st.text(alphabet=st.sampled_from("".join(TEXTS.values())) | st.characters(exclude_categories=["Cs"]))
    )
    ids = tokenizer_of(kind).encode(text).ids
    expected = whole(kind, ids)
    borders = sorted({0, len(ids), *data.draw(st.lists(st.integers(0, len(ids)), max_size=8))})
    parts = [decoder_of(kind).part(ids, *pair) for pair in itertools.pairwise(borders)]
    assert "".join(parts) == expected
    assert all(len(part) <= len(expected) for part in parts)


@given(data=st.data())
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_any_token_ids_have_a_text(kind: str, data: st.DataObject) -> None:
    """Ids of invalid bytes have a text too, wherever they are split."""
    size = tokenizer_of(kind).get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 2), max_size=40))
    borders = sorted(data.draw(st.lists(st.integers(0, len(ids)), min_size=1, max_size=6)))
    parts = [decoder_of(kind).part(ids, *pair) for pair in itertools.pairwise([0, *borders, len(ids)])]
    if all(token < size for token in ids) and UNFINISHED not in whole(kind, ids):
        assert "".join(parts) == whole(kind, ids)


@pytest.mark.parametrize("kind", ["llama", "byte level"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_segments_and_turns_of_an_answer_are_its_text(kind: str, text: str, tmp_path: Path) -> None:
    """Segments by mask join to the answer, also over a partial rollout."""
    tokenizer = tokenizer_of(kind)
    name, ids = stored(tmp_path, tokenizer), tokenizer.encode(text).ids
    expected = whole(kind, ids)
    asked = tokenizer.encode("Twelve apples and seven pears are how many pieces of fruit?").ids
    rewriter = LineRewriter(tmp_path)
    for border in range(1, len(ids)):
        mask = [1] * border + [0] * (len(ids) - border)
        output = {"prompt_ids": asked, "response_ids": ids, "response_mask": mask}
        exported = exported_by(rewriter, line(1, {}, output, tokenizer=name, trace=border)).output
        segments = [segment["text"] for segment in exported["response_segments"]]
        assert "".join(segments) == exported["response_text"]
        assert exported["response_text"].strip() == expected.strip()

        partial = {"prompt_ids": asked}, {"token_ids": ids[:border]}
        resumed = {"prompt_ids": [*asked, *ids[:border]]}, {"token_ids": ids[border:]}
        first = exported_by(rewriter, line(1, *partial, tokenizer=name, trace=1000 + border)).output
        second = exported_by(rewriter, line(2, *resumed, tokenizer=name, trace=1000 + border)).output
        assert second["prompt_text_begins_at_token"] == len(asked) + border
        # An answer that ends within a character ends with U+FFFD; the next turn has the character.
        finished = decoder_of(kind).part([*asked, *ids], len(asked), len(asked) + border)
        assert first["response_text"].rstrip(UNFINISHED) == finished.rstrip(UNFINISHED)
        assert finished + second["prompt_text"] + second["response_text"] == exported["response_text"]


def test_answer_cut_within_a_character_keeps_the_characters_before() -> None:
    """A cut answer has no replacement characters before the cut."""
    ids = tokenizer_of("llama").encode("答案").ids
    assert decoder_of("llama").part(ids, 0, len(ids) - 1) == "答"
    assert decoder_of("llama").part(ids[:-1], 0, len(ids) - 1) == "答" + 2 * UNFINISHED
