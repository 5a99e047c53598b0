"""The text of token ids: decoded outside of the training process, each token once, as the tokenizer does."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from otel_rollout.base import semconv
from otel_rollout.capture import encoding
from otel_rollout.forwarder import tokenizer_cache as decoders_of_runs
from otel_rollout.forwarder.detokenizer import Decoder
from otel_rollout.forwarder.enrichment import Enrichment
from otel_rollout.recording import tokenizers as tokenizers_of_processes
from otel_rollout.recording.redaction import redact_secrets
from otel_rollout.recording.tokenizers import Tokenizers
from otel_rollout.spool import layout
from tests.forwarder.tokens_support import DEMO, Told, demo_tokenizer, line, stored

LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text()
TEXT = LICENSE + "é 你好 🙂 ŵ \u200b<|im_end|>"


def sentencepiece_like() -> Tokenizer:
    """A tokenizer as Llama 2 has one: words begin with a mark, unknown characters become bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    """A tokenizer as BERT has one: pieces within a word are marked, words joined by spaces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=700, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    return tokenizer


TOKENIZERS = {"byte level": demo_tokenizer, "sentencepiece": sentencepiece_like, "wordpiece": wordpiece}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def test_what_is_stored_decodes_as_the_tokenizer_does(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Every token, those that were added later too, and text with characters of several tokens."""
    tokenizer.add_tokens(["<call>", "ŵord"])
    name = stored(tmp_path, tokenizer)
    decoder = Decoder.stored(tmp_path, name)
    assert decoder is not None
    ids = tokenizer.encode(f"{TEXT} <call> ŵord").ids
    assert decoder.text(ids) == tokenizer.decode(ids, skip_special_tokens=False)
    for token in range(tokenizer.get_vocab_size()):
        assert decoder.text([token]) == tokenizer.decode([token], skip_special_tokens=False)
    size = tokenizer.get_vocab_size()
    assert decoder.text([size + 7]) == f"<unknown token {size + 7}>"
    path = layout.tokenizer_file(tmp_path, name)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_changed_tokenizer_has_another_name(tmp_path: Path) -> None:
    """The same tokenizer loaded twice has one name; with a token more it is another tokenizer."""
    tokenizers, other = Tokenizers(tmp_path), demo_tokenizer()
    other.add_tokens(["<call>"])
    first, again, changed = map(tokenizers.name_of, (demo_tokenizer(), demo_tokenizer(), other))
    assert first == again != changed
    tokenizers.finish(60)


def test_whose_tokenizer_it_is(tmp_path: Path) -> None:
    """A tokenizer of transformers, one of the library itself, a processor that has one, and a file."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=demo_tokenizer())
    processor = type("Processor", (), {"tokenizer": fast})()
    tokenizers = Tokenizers(
        tmp_path, str(Path(__file__).parents[2] / "examples/otel_rollout_demo/data/tokenizer")
    )
    names = [tokenizers.name_of(known) for known in (demo_tokenizer(), fast, processor)]
    assert names[0] is not None
    assert len(set(names)) == 1
    from_file = tokenizers.name_of(None)
    tokenizers.finish(60)
    assert {path.stem for path in layout.tokenizer_files(tmp_path)} == {names[0], from_file}
    decoder = Decoder.stored(tmp_path, str(from_file))
    assert decoder is not None
    ids = demo_tokenizer().encode(TEXT).ids
    assert decoder.text(ids) == demo_tokenizer().decode(ids, skip_special_tokens=False)


class Raising:
    """A tokenizer that does not work."""

    @property
    def backend_tokenizer(self) -> Any:
        raise RuntimeError("no vocabulary")


@pytest.mark.parametrize(
    ("broken", "why"), [(object(), "needs a fast tokenizer"), (Raising(), "no vocabulary")]
)
def test_a_tokenizer_that_cannot_be_written_is_said_once(
    broken: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is slow-only, or raises, has no name; nothing reaches the caller."""
    tokenizers = Tokenizers(tmp_path)
    assert [tokenizers.name_of(broken) for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert why in record.message


def test_a_tokenizer_by_name_that_is_not_there_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is downloaded; what was downloaded before is found in the Hugging Face cache."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    tokenizers = Tokenizers(tmp_path / "run", "some/model")
    assert [tokenizers.name_of(None) for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "OTEL_ROLLOUT_TOKENIZER='some/model'" in record.message
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "0f"
    snapshot.mkdir(parents=True)
    demo_tokenizer().save(str(snapshot / "tokenizer.json"))
    (tmp_path / "run").mkdir()
    found = Tokenizers(tmp_path / "run", "some/model")
    name = found.name_of(None)
    found.finish(60)
    assert Decoder.stored(tmp_path / "run", str(name)) is not None


@settings(max_examples=50)
@given(data=st.data())
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_text_in_pieces_is_the_text(kind: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    """Decoded turn by turn, the text of a whole trajectory is what the tokenizer makes of all of it at once.

    Turns end where they like, within a character too.
    """
    tokenizer, node_dir, name = _shared(kind, tmp_path_factory)
    ids = tokenizer.encode(data.draw(st.text(alphabet=st.sampled_from(TEXT), max_size=300))).ids
    ends = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    enrichment = Enrichment(node_dir)
    for number, (begin, end) in enumerate(itertools.pairwise(ends), start=1):
        answered = {"prompt_ids": ids[:begin]}, {"token_ids": ids[begin:end]}
        enrichment.line(line(number, *answered, tokenizer=name))
    decoded = enrichment.decoded
    whole = line(99, {}, {"response_ids": ids}, tokenizer=name, kind=semconv.KIND_AGENT, span=(1, 999))
    text = Told(enrichment.line(whole)).output.get("response_text", "")
    assert text == (tokenizer.decode(ids, skip_special_tokens=False) if ids else "")
    assert decoded <= len(ids) + 9 * 2 * len(ends) + 40


_kept: dict[str, tuple[Tokenizer, Path, str]] = {}


def _shared(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Path, str]:
    if kind not in _kept:
        node_dir, tokenizer = tmp_path_factory.mktemp("node"), TOKENIZERS[kind]()
        _kept[kind] = tokenizer, node_dir, stored(node_dir, tokenizer)
    return _kept[kind]


def test_each_turn_shows_the_text_that_is_new(tmp_path: Path) -> None:
    """Thirty turns: a prompt's text begins where the last answer ended, and each token was decoded once.

    The agent loop around them, which returns all of it, shows the whole, told apart by who said what. The
    root, whose output is the agent loop's, shows the answer. Log probabilities are told in a line everywhere.
    """
    tokenizer = demo_tokenizer()
    name = stored(tmp_path, tokenizer)
    whole = tokenizer.encode(LICENSE * 3).ids
    parts = [whole[begin : begin + 120] for begin in range(0, 60 * 120, 120)]
    enrichment = Enrichment(tmp_path)
    ids: list[int] = []
    for turn in range(30):
        tool, answer = parts[2 * turn], parts[2 * turn + 1]
        call = {"prompt_ids": [*ids, *tool]}, {"token_ids": answer, "log_probs": [-0.5] * len(answer)}
        told = Told(enrichment.line(line(turn + 2, *call, tokenizer=name)))
        assert told.output["prompt_text"] == tokenizer.decode(tool, skip_special_tokens=False)
        assert told.output["response_text"] == tokenizer.decode(answer, skip_special_tokens=False)
        assert told.output.get("prompt_text_begins_at_token", 0) == len(ids)
        assert told.output["log_probs"] == {"count": len(answer), "mean": -0.5, "least": -0.5}
        ids += [*tool, *answer]
    first = len(parts[0])
    mask = [answer for number, part in enumerate(parts[1:]) for answer in [1 - number % 2] * len(part)]
    output = {"prompt_ids": parts[0], "response_ids": ids[first:], "response_mask": mask}
    output["response_logprobs"] = [-0.5] * len(mask)
    run = Told(enrichment.line(line(1, {}, output, span=(1, 999), tokenizer=name, kind=semconv.KIND_AGENT)))
    assert run.output["prompt_ids"] == parts[0]
    assert run.output["prompt_text"] == tokenizer.decode(parts[0], skip_special_tokens=False)
    assert run.output["response_text"] == tokenizer.decode(ids[first:], skip_special_tokens=False)
    assert [(s["role"], s["tokens"]) for s in run.output["response_segments"]] == [
        ("environment" if number % 2 else "model", len(part)) for number, part in enumerate(parts[1:])
    ]
    assert "".join(s["text"] for s in run.output["response_segments"]) == run.output["response_text"]
    root = Told(enrichment.line(line(100, {}, output, span=(0, 1000), kind=semconv.KIND_AGENT, text_of=1)))
    assert root.output["response_text"] == run.output["response_text"]
    for told in (run, root):
        assert told.output["response_logprobs"] == {"count": len(mask), "mean": -0.5, "least": -0.5}
    assert enrichment.decoded <= 1.1 * len(ids)


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ([-0.5, math.nan, -1.5], {"count": 2, "mean": -1.0, "least": -1.5, "missing": 1}),
        ([math.nan, -2.0], {"count": 1, "mean": -2.0, "least": -2.0, "missing": 1}),
        ([-0.5, -1.5], {"count": 2, "mean": -1.0, "least": -1.5}),
        ([math.nan, math.nan], [None, None]),
    ],
)
def test_log_probability_that_is_nan_counts_as_missing(
    recorded: list[float], told: Any, tmp_path: Path
) -> None:
    """NaN is recorded as null; the numbers beside it are summed up, and the summary says how many lack."""
    tokenizer = demo_tokenizer()
    name, ids = stored(tmp_path, tokenizer), tokenizer.encode(TEXT).ids
    output = orjson.loads(encoding.to_json({"token_ids": ids[4:6], "log_probs": recorded}, 1 << 10))
    call = Told(Enrichment(tmp_path).line(line(1, {"prompt_ids": ids[:4]}, output, tokenizer=name)))
    assert call.output["log_probs"] == told


def test_ids_that_were_cut_are_not_taken_for_the_whole(tmp_path: Path) -> None:
    """What the recorder left out of a long list is said behind the text, and nobody continues it."""
    tokenizer = demo_tokenizer()
    name, ids = stored(tmp_path, tokenizer), tokenizer.encode(TEXT).ids
    enrichment = Enrichment(tmp_path)
    cut = {"prompt_ids": ids[:50]}, {"token_ids": [*ids[50:90], "… (700 more items)"]}
    told = Told(enrichment.line(line(1, *cut, tokenizer=name)))
    assert told.output["response_text"].endswith("… (700 more items)")
    assert told.output["token_ids"] == cut[1]["token_ids"]
    after = Told(enrichment.line(line(2, {"prompt_ids": ids[:95]}, {"token_ids": [1]}, tokenizer=name)))
    assert after.input["prompt_ids"] == ids[:95]


@pytest.mark.parametrize("answer", [[[11, 12]], [11, 1.0], [11, None], [True], [11, -100], [11, "7" * 22]])
def test_answer_that_is_no_list_of_token_ids_gets_no_text(answer: list[Any], tmp_path: Path) -> None:
    """Padding, floats, nested lists and huge numbers are no ids: an empty text would be a wrong one."""
    name, enrichment = stored(tmp_path, demo_tokenizer()), Enrichment(tmp_path)
    told = Told(enrichment.line(line(1, {"prompt_ids": [11, 12]}, {"response_ids": answer}, tokenizer=name)))
    assert "response_text" not in told.output
    assert told.output["prompt_text"]
    empty = Told(enrichment.line(line(2, {"prompt_ids": [11, 12]}, {"response_ids": []}, tokenizer=name)))
    assert empty.output["response_text"] == ""


@pytest.mark.parametrize("content", [None, b"{", b'{"version":"1.0"}'])
def test_without_a_usable_tokenizer_ids_stay(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is missing or damaged: lines go through as they were recorded, and one warning says why."""
    monkeypatch.setattr(decoders_of_runs, "_LOOK_INTERVAL", 0.0)
    name = "0" * 32
    path = layout.tokenizer_file(tmp_path, name)
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    enrichment = Enrichment(tmp_path)
    raw = line(1, {"prompt_ids": [1]}, {"token_ids": [2]}, tokenizer=name)
    assert [enrichment.line(raw) for _ in range(3)] == [raw] * 3
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_a_tokenizer_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    """The first spans of a process are told before its thread has written all of a large tokenizer."""
    name = stored(tmp_path, demo_tokenizer())
    path = layout.tokenizer_file(tmp_path, name)
    content = path.read_bytes()
    path.unlink()
    timer = threading.Timer(0.5, path.write_bytes, [content])
    timer.start()
    now = time.time_ns()
    raw = line(1, {"prompt_ids": [5]}, {"token_ids": [6]}, tokenizer=name, span=(now - 1, now))
    assert "response_text" in Told(Enrichment(tmp_path).line(raw)).output
    timer.join()


def test_who_claims_to_end_later_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that was set back, or a time somebody made up, does not hold up what is delivered."""
    monkeypatch.setattr(decoders_of_runs, "PATIENCE", 0.2)
    later = time.time_ns() + 60 * 10**9
    raw = line(1, {}, {"token_ids": [6]}, tokenizer="0" * 32, span=(later - 1, later))
    began = time.monotonic()
    assert Enrichment(tmp_path).line(raw) == raw
    assert time.monotonic() - began < 30


def test_a_tokenizer_that_panics_costs_the_text_and_nothing_else(tmp_path: Path) -> None:
    """What the library raises where it has a fault is no Exception, and yet the line is delivered."""
    tokenizer = Tokenizer(models.WordLevel({" ": 0}, unk_token=" "))
    tokenizer.decoder = decoders.Strip(" ", 0, 3)
    raw = line(1, {}, {"token_ids": [0]}, tokenizer=stored(tmp_path, tokenizer))
    assert Enrichment(tmp_path).line(raw) == raw


def test_the_default_is_nobody_s_before_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread looks for the default tokenizer on a slow disk, another one does not go without."""
    begun, over = threading.Event(), threading.Event()
    look = tokenizers_of_processes._local_file

    def slow(named: str) -> Path | None:
        if not begun.is_set():
            begun.set()
            over.wait(60)
        return look(named)

    monkeypatch.setattr(tokenizers_of_processes, "_local_file", slow)
    tokenizers = Tokenizers(tmp_path, str(DEMO))
    first = threading.Thread(target=tokenizers.name_of, args=[None])
    first.start()
    assert begun.wait(60)
    named = tokenizers.name_of(None)
    over.set()
    first.join()
    assert named is not None
    assert tokenizers.name_of(None) == named
    tokenizers.finish(60)


def test_a_process_without_room_for_a_thread_ends_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no thread can be started there is no text, and no exception either, then or in the end."""

    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tokenizers = Tokenizers(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", no_room)
    assert tokenizers.name_of(demo_tokenizer()) is not None or caplog.records
    tokenizers.finish(1)


def test_another_ones_file_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a link that stands for a tokenizer, nor a name that leads elsewhere."""
    node_dir = tmp_path / "node"
    node_dir.mkdir()
    name = stored(tmp_path, demo_tokenizer())
    target = layout.tokenizer_file(node_dir, name)
    target.parent.mkdir()
    target.symlink_to(layout.tokenizer_file(tmp_path, name))
    for named in (name, f"../../tokenizers/{name}"):
        raw = line(1, {"prompt_ids": [1]}, {"token_ids": [2]}, tokenizer=named)
        assert Enrichment(node_dir).line(raw) == raw


@pytest.mark.parametrize("before", ["the key ", "the key:\n", "the key:\t", '{"key": "', "{'key': '\\n"])
def test_decoded_text_is_redacted(tmp_path: Path, before: str) -> None:
    """A secret that was in token ids, where redaction did not find it, is not told in their text."""
    tokenizer = demo_tokenizer()
    name, secret = stored(tmp_path, tokenizer), "sk-" + "a1B2" * 8
    raw = line(1, {}, {"token_ids": tokenizer.encode(f"{before}{secret} is").ids}, tokenizer=name)
    assert secret in Enrichment(tmp_path).line(raw).decode()
    told = Told(Enrichment(tmp_path, redact=redact_secrets).line(raw))
    assert told.output["response_text"].endswith(f"{before}[redacted] is")
