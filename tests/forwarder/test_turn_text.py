"""Test that the forwarder decodes token ids to text, each token once."""

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
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from otel_rollout.base import semconv
from otel_rollout.record.capture import encoding
from otel_rollout.record.recording import tokenizers as tokenizers_of_processes
from otel_rollout.record.recording.tokenizers import Tokenizers
from otel_rollout.redaction.secret_finder import redact_secrets
from otel_rollout.spool import layout
from otel_rollout.turns.detokenizer import Detokenizer
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.forwarder.tokens_support import DEMO, counted_tokens, demo_tokenizer, exported_by, line, stored
from tests.waiting import wait_for
from tests.waits import set_waits

LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text()
TEXT = LICENSE + "é 你好 🙂 ŵ \u200b<|im_end|>"


def sentencepiece_like() -> Tokenizer:
    """Return a tokenizer like Llama 2: words begin with a mark; bytes as fallback."""
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
    """Return a tokenizer like BERT: inner pieces are marked, spaces join words."""
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


def test_stored_tokenizer_decodes_as_the_original(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The stored tokenizer decodes every token, added ones included."""
    tokenizer.add_tokens(["<call>", "ŵord"])
    name = stored(tmp_path, tokenizer)
    decoder = Detokenizer.stored(tmp_path, name)
    assert decoder is not None
    ids = tokenizer.encode(f"{TEXT} <call> ŵord").ids
    assert decoder.part(ids, 0, len(ids)) == tokenizer.decode(ids, skip_special_tokens=False)
    for token in range(tokenizer.get_vocab_size()):
        assert decoder.part([token], 0, 1) == tokenizer.decode([token], skip_special_tokens=False)
    size = tokenizer.get_vocab_size()
    assert decoder.part([size + 7], 0, 1) == f"<unknown token {size + 7}>"
    path = layout.tokenizer_file(tmp_path, name)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_changed_tokenizer_has_another_name(tmp_path: Path) -> None:
    """A tokenizer loaded twice has one name; an added token changes the name."""
    tokenizers, other = Tokenizers(tmp_path), demo_tokenizer()
    other.add_tokens(["<call>"])
    first, again, changed = map(tokenizers.name_of, (demo_tokenizer(), demo_tokenizer(), other))
    assert first == again != changed
    tokenizers.finish(60)


def test_tokenizer_is_found_in_objects_of_every_kind(tmp_path: Path) -> None:
    """The object may be a tokenizer of either library, a processor, or a file."""
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
    decoder = Detokenizer.stored(tmp_path, str(from_file))
    assert decoder is not None
    ids = demo_tokenizer().encode(TEXT).ids
    assert decoder.part(ids, 0, len(ids)) == demo_tokenizer().decode(ids, skip_special_tokens=False)


class Raising:
    """A tokenizer that raises."""

    @property
    def backend_tokenizer(self) -> Any:
        raise RuntimeError("no vocabulary")


@pytest.mark.parametrize(
    ("broken", "why"), [(object(), "needs a fast tokenizer"), (Raising(), "no vocabulary")]
)
def test_tokenizer_that_cannot_be_written_is_warned_of_once(
    broken: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow-only or raising tokenizer has no name, and nothing is raised."""
    tokenizers = Tokenizers(tmp_path)
    assert [tokenizers.name_of(broken) for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert why in record.message


def test_missing_tokenizer_by_name_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is downloaded; the Hugging Face cache is searched."""
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
    assert Detokenizer.stored(tmp_path / "run", str(name)) is not None


@given(data=st.data())
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_text_decoded_turn_by_turn_is_the_text(kind: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    """Turns may end anywhere, also within a character."""
    tokenizer, node_dir, name = _shared(kind, tmp_path_factory)
    ids = tokenizer.encode(data.draw(st.text(alphabet=st.sampled_from(TEXT), max_size=300))).ids
    ends = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    rewriter = LineRewriter(node_dir)
    with pytest.MonkeyPatch.context() as patches:
        decoded = counted_tokens(patches)
        for number, (begin, end) in enumerate(itertools.pairwise(ends), start=1):
            answered = {"prompt_ids": ids[:begin]}, {"token_ids": ids[begin:end]}
            rewriter.rewrite(line(number, *answered, tokenizer=name))
    whole = line(99, {}, {"response_ids": ids}, tokenizer=name, kind=semconv.KIND_AGENT, span=(1, 999))
    text = exported_by(rewriter, whole).output.get("response_text", "")
    assert text == (tokenizer.decode(ids, skip_special_tokens=False) if ids else "")
    # At an end within a character, each length of a character on both sides is tried.
    assert sum(decoded) <= len(ids) + 9 * 5 * len(ends) + 40


_kept: dict[str, tuple[Tokenizer, Path, str]] = {}


def _shared(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Path, str]:
    if kind not in _kept:
        node_dir, tokenizer = tmp_path_factory.mktemp("node"), TOKENIZERS[kind]()
        _kept[kind] = tokenizer, node_dir, stored(node_dir, tokenizer)
    return _kept[kind]


def test_turn_shows_its_new_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token of 30 turns is decoded once; agent loop and root show all text."""
    tokenizer = demo_tokenizer()
    name = stored(tmp_path, tokenizer)
    whole = tokenizer.encode(LICENSE * 3).ids
    parts = [whole[begin : begin + 120] for begin in range(0, 60 * 120, 120)]
    rewriter, decoded = LineRewriter(tmp_path), counted_tokens(monkeypatch)
    ids: list[int] = []
    for turn in range(30):
        tool, answer = parts[2 * turn], parts[2 * turn + 1]
        call = {"prompt_ids": [*ids, *tool]}, {"token_ids": answer, "log_probs": [-0.5] * len(answer)}
        exported = exported_by(rewriter, line(turn + 2, *call, tokenizer=name))
        assert exported.output["prompt_text"] == tokenizer.decode(tool, skip_special_tokens=False)
        assert exported.output["response_text"] == tokenizer.decode(answer, skip_special_tokens=False)
        assert exported.output.get("prompt_text_begins_at_token", 0) == len(ids)
        assert exported.output["log_probs"] == {"count": len(answer), "mean": -0.5, "least": -0.5}
        ids += [*tool, *answer]
    first = len(parts[0])
    mask = [answer for number, part in enumerate(parts[1:]) for answer in [1 - number % 2] * len(part)]
    output = {"prompt_ids": parts[0], "response_ids": ids[first:], "response_mask": mask}
    output["response_logprobs"] = [-0.5] * len(mask)
    run = exported_by(rewriter, line(1, {}, output, span=(1, 999), tokenizer=name, kind=semconv.KIND_AGENT))
    assert run.output["prompt_ids"] == parts[0]
    assert run.output["prompt_text"] == tokenizer.decode(parts[0], skip_special_tokens=False)
    assert run.output["response_text"] == tokenizer.decode(ids[first:], skip_special_tokens=False)
    assert [(s["role"], s["tokens"]) for s in run.output["response_segments"]] == [
        ("environment" if number % 2 else "model", len(part)) for number, part in enumerate(parts[1:])
    ]
    assert "".join(s["text"] for s in run.output["response_segments"]) == run.output["response_text"]
    root = exported_by(rewriter, line(100, {}, output, span=(0, 1000), kind=semconv.KIND_AGENT, text_of=1))
    assert root.output["response_text"] == run.output["response_text"]
    for span in (run, root):
        assert span.output["response_logprobs"] == {"count": len(mask), "mean": -0.5, "least": -0.5}
    assert sum(decoded) <= 1.1 * len(ids)


@pytest.mark.parametrize(
    ("recorded", "summary"),
    [
        ([-0.5, math.nan, -1.5], {"count": 2, "mean": -1.0, "least": -1.5, "missing": 1}),
        ([math.nan, -2.0], {"count": 1, "mean": -2.0, "least": -2.0, "missing": 1}),
        ([-0.5, -1.5], {"count": 2, "mean": -1.0, "least": -1.5}),
        ([math.nan, math.nan], [None, None]),
    ],
)
def test_log_probability_that_is_nan_counts_as_missing(
    recorded: list[float], summary: Any, tmp_path: Path
) -> None:
    """NaN is recorded as null; the summary counts such values as missing."""
    tokenizer = demo_tokenizer()
    name, ids = stored(tmp_path, tokenizer), tokenizer.encode(TEXT).ids
    output = orjson.loads(encoding.to_json({"token_ids": ids[4:6], "log_probs": recorded}, 1 << 10))
    call = exported_by(LineRewriter(tmp_path), line(1, {"prompt_ids": ids[:4]}, output, tokenizer=name))
    assert call.output["log_probs"] == summary


def test_cut_token_ids_are_continued_by_no_turn(tmp_path: Path) -> None:
    """The note for ids that were cut off follows the text."""
    tokenizer = demo_tokenizer()
    name, ids = stored(tmp_path, tokenizer), tokenizer.encode(TEXT).ids
    rewriter = LineRewriter(tmp_path)
    cut = {"prompt_ids": ids[:50]}, {"token_ids": [*ids[50:90], "… (700 more items)"]}
    exported = exported_by(rewriter, line(1, *cut, tokenizer=name))
    assert exported.output["response_text"].endswith("… (700 more items)")
    assert exported.output["token_ids"] == cut[1]["token_ids"]
    after = exported_by(rewriter, line(2, {"prompt_ids": ids[:95]}, {"token_ids": [1]}, tokenizer=name))
    assert after.input["prompt_ids"] == ids[:95]


@pytest.mark.parametrize("answer", [[[11, 12]], [11, 1.0], [11, None], [True], [11, -100], [11, "7" * 22]])
def test_answer_that_is_no_list_of_token_ids_gets_no_text(answer: list[Any], tmp_path: Path) -> None:
    """Padding, floats, nested lists and huge numbers are no token ids."""
    name, rewriter = stored(tmp_path, demo_tokenizer()), LineRewriter(tmp_path)
    exported = exported_by(
        rewriter, line(1, {"prompt_ids": [11, 12]}, {"response_ids": answer}, tokenizer=name)
    )
    assert "response_text" not in exported.output
    assert exported.output["prompt_text"]
    empty = exported_by(rewriter, line(2, {"prompt_ids": [11, 12]}, {"response_ids": []}, tokenizer=name))
    assert empty.output["response_text"] == ""


@pytest.mark.parametrize("content", [None, b"{", b'{"version":"1.0"}'])
def test_lines_without_a_usable_tokenizer_stay_as_recorded(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning gives the reason why the tokenizer's file cannot be used."""
    set_waits(monkeypatch, absent=0.0)
    name = "0" * 32
    path = layout.tokenizer_file(tmp_path, name)
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    rewriter = LineRewriter(tmp_path)
    raw = line(1, {"prompt_ids": [1]}, {"token_ids": [2]}, tokenizer=name)
    assert [rewriter.rewrite(raw).encoded for _ in range(3)] == [raw] * 3
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_tokenizer_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    """A process's first spans may arrive while its tokenizer is being written."""
    name = stored(tmp_path, demo_tokenizer())
    path = layout.tokenizer_file(tmp_path, name)
    hidden = path.rename(tmp_path / "written")
    timer = threading.Timer(0.5, hidden.rename, [path])
    timer.start()
    now = time.time_ns()
    raw = line(1, {"prompt_ids": [5]}, {"token_ids": [6]}, tokenizer=name, span=(now - 1, now))
    assert "response_text" in exported_by(LineRewriter(tmp_path), raw).output
    timer.join()


def test_wait_for_a_tokenizer_delays_no_other_line(tmp_path: Path) -> None:
    """Lines with no tokenizer, or with a loaded one, are rewritten meanwhile."""
    missing, loaded = "0" * 32, stored(tmp_path, demo_tokenizer())
    rewriter = LineRewriter(tmp_path)
    ids = {"prompt_ids": [5]}, {"token_ids": [6]}
    assert "response_text" in exported_by(rewriter, line(1, *ids, tokenizer=loaded)).output
    now = time.time_ns()
    raw = line(2, *ids, tokenizer=missing, span=(now - 1, now))
    waiting = threading.Thread(target=rewriter.rewrite, args=[raw], daemon=True)
    waiting.start()
    shown = line(4, {}, {}, text_of=3)
    lines = [line(3, *ids, tokenizer=loaded), shown, line(5, {"messages": [{"role": "user"}]}, {})]
    for other in lines:
        rewriter.rewrite(other)
    assert waiting.is_alive()
    path = layout.tokenizer_file(tmp_path, missing)
    path.write_bytes(layout.tokenizer_file(tmp_path, loaded).read_bytes())
    waiting.join(60)
    assert not waiting.is_alive()


def test_span_that_ends_in_the_future_extends_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is set back does not delay delivery."""
    set_waits(monkeypatch, tokenizer=0.2)
    later = time.time_ns() + 3600 * 10**9
    raw = line(1, {}, {"token_ids": [6]}, tokenizer="0" * 32, span=(later - 1, later))
    rewriting = threading.Thread(target=LineRewriter(tmp_path).rewrite, args=[raw], daemon=True)
    rewriting.start()
    wait_for(lambda: not rewriting.is_alive(), what="the line as it is")


def test_tokenizer_that_panics_costs_the_text_alone(tmp_path: Path) -> None:
    """A panic of the library, which is no Exception, does not stop the export."""
    tokenizer = Tokenizer(models.WordLevel({" ": 0}, unk_token=" "))
    tokenizer.decoder = decoders.Strip(" ", 0, 3)
    raw = line(1, {}, {"token_ids": [0]}, tokenizer=stored(tmp_path, tokenizer))
    assert LineRewriter(tmp_path).rewrite(raw).encoded == raw


def test_default_tokenizer_is_waited_for_by_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread waits for the default tokenizer while another thread loads it."""
    begun, over = threading.Event(), threading.Event()
    look = tokenizers_of_processes._local_file

    def slow(named: str) -> Path | None:
        if not begun.is_set():
            begun.set()
            over.wait(60)
        return look(named)

    monkeypatch.setattr(tokenizers_of_processes, "_local_file", slow)
    tokenizers = Tokenizers(tmp_path, str(DEMO))
    first = threading.Thread(target=tokenizers.name_of, args=[None], daemon=True)
    first.start()
    assert begun.wait(60)
    named = tokenizers.name_of(None)
    over.set()
    first.join()
    assert named is not None
    assert tokenizers.name_of(None) == named
    tokenizers.finish(60)


def test_process_that_cannot_start_a_thread_records_without_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No exception reaches the program, neither at once nor at exit."""

    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tokenizers = Tokenizers(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", no_room)
    assert tokenizers.name_of(demo_tokenizer()) is not None or caplog.records
    tokenizers.finish(1)


def test_foreign_tokenizer_file_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link, and a name that leads to another directory, are ignored."""
    node_dir = tmp_path / "node"
    node_dir.mkdir()
    name = stored(tmp_path, demo_tokenizer())
    target = layout.tokenizer_file(node_dir, name)
    target.parent.mkdir()
    target.symlink_to(layout.tokenizer_file(tmp_path, name))
    for named in (name, f"../../tokenizers/{name}"):
        raw = line(1, {"prompt_ids": [1]}, {"token_ids": [2]}, tokenizer=named)
        assert LineRewriter(node_dir).rewrite(raw).encoded == raw


@pytest.mark.parametrize("before", ["the key ", "the key:\n", "the key:\t", '{"key": "', "{'key': '\\n"])
def test_decoded_text_is_redacted(tmp_path: Path, before: str) -> None:
    """A secret in token ids, which the recorder cannot see, is not in their text."""
    tokenizer = demo_tokenizer()
    name, secret = stored(tmp_path, tokenizer), "sk-" + "a1B2" * 8
    raw = line(1, {}, {"token_ids": tokenizer.encode(f"{before}{secret} is").ids}, tokenizer=name)
    assert secret in LineRewriter(tmp_path).rewrite(raw).encoded.decode()
    exported = exported_by(LineRewriter(tmp_path, redact=redact_secrets), raw)
    assert exported.output["response_text"].endswith(f"{before}[redacted] is")
