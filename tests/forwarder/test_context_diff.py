"""Test the context diff: it finds the new part of a turn, and restores the turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base import semconv
from otel_rollout.turns.context_diff import restored
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.forwarder.tokens_support import ExportedSpan, demo_tokenizer, exported_by, line, prompts, stored

TURN = (semconv.TURN_CONTINUES, semconv.TURN_SHARED, semconv.TURN_LENGTH)
ids = st.lists(st.integers(0, 5), max_size=40)
ids_of_any_size = st.lists(st.integers(0, (1 << 32) - 1), max_size=30)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[int], list[int], int, int]]:
    """Draw the model calls of a trajectory: prompt, answer, start and end.

    Each prompt is new, or derived from the sequence of an earlier call: items are appended or edited, or the
    beginning or the end is cut off. Calls may run at the same time.
    """
    calls: list[tuple[list[int], list[int], int, int]] = []
    for number in range(draw(st.integers(1, 12))):
        before: list[int] = []
        if calls:
            prompt, answer, _, _ = calls[draw(st.integers(0, len(calls) - 1))]
            before = [*prompt, *answer]
        cut = draw(st.integers(0, len(before)))
        change = draw(st.sampled_from(["append", "edit", "drop the beginning", "drop the end", "new"]))
        added = draw(ids | ids_of_any_size)
        prompt = {
            "append": [*before, *added],
            "edit": [*before[:cut], *added, *before[cut + 1 :]],
            "drop the beginning": [*before[cut:], *added],
            "drop the end": [*before[:cut], *added],
            "new": added,
        }[change]
        began = 10 * (number + 1) - draw(st.integers(0, 15))
        calls.append((prompt, draw(ids), max(1, began), max(1, began) + draw(st.integers(0, 15))))
    return calls


@pytest.mark.parametrize(("start", "is_shared"), [(99, False), (100, False), (101, True)])
def test_a_turn_continues_only_turns_that_ended_before_it_started(start: int, is_shared: bool) -> None:
    """Of two simultaneous turns, neither continues the other, in any reading order."""
    rewriter = LineRewriter(Path())
    prompt = list(range(40))
    rewriter.rewrite(line(1, {"prompt_ids": prompt}, {"token_ids": [7]}, span=(1, 100)))
    second = line(2, {"prompt_ids": [*prompt, 7, 8]}, {"token_ids": [9]}, span=(start, start + 10))
    assert isinstance(exported_by(rewriter, second).input["prompt_ids"], dict) == is_shared


@given(histories=st.lists(histories(), min_size=1, max_size=2), order=st.randoms(use_true_random=False))
def test_prompts_are_restored_from_what_exporters_get(histories: list[Any], order: Any) -> None:
    """Each prompt is restored exactly, for any edits and any order of lines."""
    recorded = [
        (trace, line(number, {"prompt_ids": call[0]}, {"token_ids": call[1]}, span=call[2:], trace=trace))
        for trace, calls in enumerate(histories, start=1)
        for number, call in enumerate(calls, start=1)
    ]
    order.shuffle(recorded)
    rewriter = LineRewriter(Path())
    first = [(trace, rewriter.rewrite(raw).encoded) for trace, raw in recorded]
    again = [(trace, rewriter.rewrite(raw).encoded) for trace, raw in recorded]
    for lines in (first, again):
        for trace, calls in enumerate(histories, start=1):
            exported = [ExportedSpan(raw) for of, raw in lines if of == trace]
            assert prompts(exported) == {
                f"{number:016x}": prompt for number, (prompt, _, _, _) in enumerate(calls, start=1)
            }


SHAPES = {
    "as it is": lambda ids: {"prompt_ids": ids},
    "with a placeholder": lambda ids: {"prompt_ids": [*ids[:2], "<image>", *ids[2:]]},
    "cut": lambda ids: {"prompt_ids": [*ids[:2], "… (700 more items)"]},
    "nested": lambda ids: {"prompt_ids": [ids]},
    "floats": lambda ids: {"prompt_ids": [float(token) for token in ids]},
    "one float": lambda ids: {"prompt_ids": [1.0, *ids[1:]]},
    "bools": lambda ids: {"prompt_ids": [bool(token) for token in ids]},
    "negative": lambda ids: {"prompt_ids": [-1, *ids]},
    "too large": lambda ids: {"prompt_ids": [1 << 40, *ids]},
    "text": lambda ids: {"prompt_ids": "text"},
    "object": lambda ids: {"prompt_ids": {"shape": [1, len(ids)]}},
    "nothing": lambda ids: {"prompt_ids": None},
    "not there": lambda ids: {},
    "under another name": lambda ids: {"input_ids": ids},
    "in a batch": lambda ids: {"batch": [{"prompt_ids": ids}, {"prompt_ids": ids[1:]}]},
    "in a batch of one": lambda ids: {"batch": [{"prompt_ids": ids}]},
}


@given(data=st.data(), history=histories())
def test_prompts_of_any_shape_are_restored(data: st.DataObject, history: Any) -> None:
    """No turn continues a prompt that was cut or is no list of token ids."""
    shapes = st.sampled_from(list(SHAPES.values())) | st.just(SHAPES["as it is"])
    start = data.draw(st.lists(st.integers(1, 3), max_size=20))
    recorded, rewriter = [], LineRewriter(Path())
    for number, (prompt, answer, began, ended) in enumerate(history, start=1):
        whole = [*start, *prompt]
        given, again = data.draw(shapes)(whole), data.draw(st.just({}) | shapes.map(lambda f, w=whole: f(w)))
        said = data.draw(
            st.sampled_from([start, answer, [start], [*answer, "… (9 more items)"], [*start, 1.0], "text"])
        )
        output = {**again, "token_ids": said}
        recorded.append(line(number, given, output, span=(began, ended)))
    exported = {call.id: call for call in (exported_by(rewriter, raw) for raw in recorded)}
    assert not rewriter._problems

    def restored_in(call: ExportedSpan, values: dict[str, Any]) -> dict[str, Any]:
        if "batch" in values:
            return {**values, "batch": [restored_in(call, value) for value in values["batch"]]}
        prompt = values.get("prompt_ids")
        if not isinstance(prompt, dict) or "continues" not in prompt:
            return values
        before = exported[prompt["continues"]]
        (of_before,) = {
            tuple(found)
            for found in _prompts(restored_in(before, before.input), restored_in(before, before.output))
        }
        whole = restored([*of_before, *before.output["token_ids"]], prompt["shared"], prompt["new"])
        assert len(whole) == prompt["length"]
        return {**values, "prompt_ids": whole}

    for raw in map(ExportedSpan, recorded):
        for values, shown in ((raw.input, exported[raw.id].input), (raw.output, exported[raw.id].output)):
            assert json.dumps(restored_in(exported[raw.id], shown)) == json.dumps(values)


def _prompts(*values: Any) -> Iterator[list[int]]:
    """Yield the lists under ``prompt_ids``, also those of batches."""
    for value in values:
        yield from [value["prompt_ids"]] if isinstance(value.get("prompt_ids"), list) else []
        yield from _prompts(*value.get("batch", ()))


def test_prompt_with_a_placeholder_is_continued_by_no_turn() -> None:
    """A prompt with a placeholder does not count as empty: its answer is no prefix."""
    answer = list(range(20, 60))
    rewriter = LineRewriter(Path())
    rewriter.rewrite(line(1, {"prompt_ids": [1, {"image": 0}, 2]}, {"token_ids": answer}))
    following = exported_by(rewriter, line(2, {"prompt_ids": [*answer, 3]}, {"token_ids": [4]}))
    assert following.input["prompt_ids"] == [*answer, 3]


def test_turn_is_exported_as_what_is_new_in_it() -> None:
    """The turn has the id of the call it continues, the shared and the full length."""
    rewriter = LineRewriter(Path())
    first = rewriter.rewrite(line(1, {"prompt_ids": list(range(100))}, {"token_ids": [7, 8]})).encoded
    given = {"prompt_ids": [*range(100), 7, 8, 9]}
    second = exported_by(rewriter, line(2, given, {"token_ids": [5]}))
    assert first == line(1, {"prompt_ids": list(range(100))}, {"token_ids": [7, 8]})
    assert second.input["prompt_ids"] == {"continues": f"{1:016x}", "shared": 102, "new": [9], "length": 103}
    assert second.attributes[semconv.TURN_CONTINUES] == f"{1:016x}"
    assert (second.attributes[semconv.TURN_SHARED], second.attributes[semconv.TURN_LENGTH]) == ("102", "103")


@pytest.mark.parametrize("turns", ["tokens", "all"])
def test_answer_that_is_recorded_under_both_keys_is_one(turns: str) -> None:
    """The next turn continues it; an object with other ids under the second key has two answers."""
    rewriter = LineRewriter(Path(), turns)
    asked, answered = list(range(40)), [50, 51]
    both = {"response_ids": answered, "token_ids": answered}
    first = exported_by(rewriter, line(1, {"prompt_ids": asked}, both))
    assert first.output == both
    longer = [*asked, *answered, 60]
    second = exported_by(rewriter, line(2, {"prompt_ids": longer}, {**both, "token_ids": [50]}))
    assert second.input["prompt_ids"] == longer
    third = exported_by(rewriter, line(3, {"prompt_ids": longer}, both))
    assert third.input["prompt_ids"] == {"continues": first.id, "shared": 42, "new": [60], "length": 43}


def test_parallel_calls_continue_the_call_before_both() -> None:
    """Two calls that run at the same time share nothing with each other."""
    rewriter = LineRewriter(Path())
    start = list(range(50))
    rewriter.rewrite(line(1, {"prompt_ids": start}, {"token_ids": [1]}))
    for number, new in ((2, [60, 61]), (3, [60, 62])):
        prompt = [*start, 1, *new]
        exported = exported_by(
            rewriter, line(number, {"prompt_ids": prompt}, {"token_ids": [2]}, span=(20, 40))
        )
        assert exported.input["prompt_ids"]["continues"] == f"{1:016x}"
        assert exported.input["prompt_ids"]["new"] == new


def test_messages_stay_whole_unless_turns_is_all() -> None:
    """A chat view needs all messages; attributes say which are new."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    more = [*said, {"role": "user", "content": "c"}]
    for turns, shown in (("tokens", more), ("all", more[2:]), ("whole", more)):
        rewriter = LineRewriter(Path(), turns)
        rewriter.rewrite(line(1, {"messages": said}, {"content": "b"}))
        second = exported_by(rewriter, line(2, {"messages": more}, {"content": "d"}))
        assert second.input["messages"] == shown
        counted = second.attributes.get(semconv.TURN_SHARED), second.attributes.get(semconv.TURN_LENGTH)
        assert counted == ((None, None) if turns == "whole" else ("2", "3"))


def test_span_that_is_no_model_call_is_continued_by_no_turn() -> None:
    """A model call after a span that only prepared its prompt is exported in full."""
    rewriter = LineRewriter(Path())
    prompt, said = list(range(40)), [{"role": "user", "content": "a"}]
    for number, made in ((1, {"prompt_ids": prompt}), (2, {"messages": said})):
        rewriter.rewrite(line(number, made, made, kind=semconv.KIND_CHAIN))
    first = line(3, {"prompt_ids": prompt}, {"token_ids": [1]})
    second = line(4, {"messages": said}, {"content": "b"})
    assert rewriter.rewrite(first).encoded == first
    assert rewriter.rewrite(second).encoded == second


def test_span_that_is_no_model_call_refers_only_to_a_model_call_before_it() -> None:
    """A tool's messages are compared with earlier model calls; without any, its line stays as recorded."""
    rewriter = LineRewriter(Path(), "all")
    said, more = [{"role": "user", "content": "a"}], [{"role": "tool", "content": "b"}]
    first = line(1, {"messages": said}, {}, kind=semconv.KIND_TOOL)
    assert rewriter.rewrite(first).encoded == first
    rewriter.rewrite(line(2, {"messages": said}, {"content": "b"}))
    third = exported_by(rewriter, line(3, {"messages": [*said, *more]}, {}, kind=semconv.KIND_TOOL))
    assert third.input["messages"] == more
    assert third.attributes[semconv.TURN_CONTINUES] == f"{2:016x}"


@pytest.mark.parametrize("turns", ["tokens", "all"])
def test_attributes_of_a_span_with_messages_and_ids_count_messages(turns: str) -> None:
    """Token ids have their own reference, in place of the ids."""
    said = [{"role": "user", "content": "a"}]
    ids = list(range(40))
    rewriter = LineRewriter(Path(), turns)
    rewriter.rewrite(line(1, {"messages": said, "prompt_ids": ids}, {"token_ids": [1]}))
    more = {"messages": [*said, {"role": "user", "content": "c"}], "prompt_ids": [*ids, 1, 2]}
    raw = rewriter.rewrite(line(2, more, {"token_ids": [3]})).encoded
    second = ExportedSpan(raw)
    assert all(raw.count(b'"%b"' % name.encode()) == 1 for name in TURN)
    assert [second.attributes[name] for name in TURN] == [f"{1:016x}", "1", "2"]
    assert second.input["prompt_ids"] == {"continues": f"{1:016x}", "shared": 41, "new": [2], "length": 42}
    other = {"messages": [{"role": "user", "content": "another"}], "prompt_ids": [*ids, 1, 2]}
    third = exported_by(rewriter, line(3, other, {"token_ids": [3]}))
    assert third.attributes.keys().isdisjoint(TURN)
    assert third.input["prompt_ids"]["shared"] == 42


def test_rewritten_line_that_is_read_again_stays_as_it_is() -> None:
    """A line that was exported to a file, and is read again, does not change."""
    said = [{"role": "user", "content": "a"}]
    more = {"messages": [*said, {"role": "user", "content": "c"}]}
    first, second = line(1, {"messages": said}, {"content": "b"}), line(2, more, {"content": "d"})
    rewriter = LineRewriter(Path())
    exported = [rewriter.rewrite(first).encoded, rewriter.rewrite(second).encoded]
    again = LineRewriter(Path())
    assert [again.rewrite(raw).encoded for raw in exported] == exported


def test_image_is_exported_once_per_trace() -> None:
    """Later spans of the trace name the span that has the image."""
    rewriter = LineRewriter(Path())
    image = "data:image/png;base64," + "iVBORw0KGgo" * 200
    said = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]}
    first = line(1, said, {"content": "a cat"})
    assert rewriter.rewrite(first).encoded == first
    assert rewriter.rewrite(first).encoded == first
    (message,) = exported_by(rewriter, line(2, said, {"content": "a dog"})).input["messages"]
    assert message["content"][0]["image_url"]["url"].startswith("<image/png of 1650 bytes, sha256 ")
    assert message["content"][0]["image_url"]["url"].endswith(f"is in span {1:016x}>")
    other = line(3, said, {"content": "a cat"}, trace=2)
    assert rewriter.rewrite(other).encoded == other


def test_image_is_never_replaced_by_a_reference_to_a_later_span() -> None:
    """Exporters read lines in their own order.

    The span that begins first keeps the image for all.
    """
    rewriter = LineRewriter(Path())
    image = "data:image/png;base64," + "iVBORw0KGgo" * 200
    said = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]}
    first, second = line(1, said, {"content": "a cat"}), line(2, said, {"content": "a dog"})
    assert rewriter.rewrite(second).encoded == second
    assert rewriter.rewrite(first).encoded == first
    (message,) = exported_by(rewriter, second).input["messages"]
    assert message["content"][0]["image_url"]["url"].endswith(f"is in span {1:016x}>")


def test_line_that_is_nested_too_deeply_for_json_is_exported_as_recorded() -> None:
    """orjson reads more levels than it writes; such a line stops no delivery."""
    rewriter = LineRewriter(Path())
    nested: dict[str, Any] = {"stringValue": "deep"}
    for _ in range(130):
        nested = {"kvlistValue": {"values": [{"key": "k", "value": nested}]}}
    ids = {"prompt_ids": list(range(40))}
    rewriter.rewrite(line(1, ids, {"token_ids": list(range(40, 60))}))
    parsed = json.loads(line(2, {"prompt_ids": list(range(80))}, {"token_ids": [1]}))
    parsed["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"].append(
        {"key": "k", "value": nested}
    )
    deep = json.dumps(parsed, separators=(",", ":")).encode() + b"\n"
    exported = rewriter.rewrite(deep)
    assert exported.encoded == deep
    assert exported.spans[0].name


def test_line_without_repeated_content_is_exported_unchanged() -> None:
    """An unreadable line is exported unchanged as well."""
    rewriter = LineRewriter(Path())
    plain = line(1, {"query": "x"}, {"prompt_ids_of": [1]})
    assert rewriter.rewrite(plain).encoded is plain
    broken = line(2, {"prompt_ids": [1]}, {}).replace(b'"spanId"', b'"nobody"')
    assert rewriter.rewrite(broken).encoded is broken


def test_memory_of_traces_is_bounded(monkeypatch: Any) -> None:
    """Traces not seen for longest are forgotten; their next turn is exported in full."""
    monkeypatch.setattr("otel_rollout.turns.line_rewriter.MEMORY_BYTES", 50_000)
    rewriter = LineRewriter(Path())
    prompt = list(range(1000))
    for trace in range(1, 101):
        rewriter.rewrite(line(1, {"prompt_ids": prompt}, {"token_ids": [1]}, trace=trace))
    assert rewriter._traces._total <= 50_000
    oldest = line(2, {"prompt_ids": [*prompt, 1]}, {"token_ids": [1]}, trace=1)
    assert rewriter.rewrite(oldest).encoded == oldest
    newest = exported_by(rewriter, line(2, {"prompt_ids": [*prompt, 1]}, {"token_ids": [1]}, trace=100))
    assert newest.input["prompt_ids"]["shared"] == 1001


interesting = st.sampled_from(
    ["prompt_ids", "response_ids", "token_ids", "messages", "response_mask", "log_probs"]
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(interesting | st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A node directory with the demo's tokenizer, and the tokenizer's name there."""
    node_dir = tmp_path_factory.mktemp("node")
    return node_dir, stored(node_dir, demo_tokenizer())


@given(spans=st.lists(st.tuples(anything, anything, st.booleans()), min_size=1, max_size=4))
def test_span_with_values_of_any_shape_is_exported(spans: list[Any], node: tuple[Path, str]) -> None:
    """Values of any shape under known names raise nothing; other values stay."""
    node_dir, name = node
    rewriter = LineRewriter(node_dir, "all")
    for number, (asked, answered, shows_text) in enumerate(spans, start=1):
        raw = line(number, asked, answered, tokenizer=name if shows_text else None)
        exported, recorded = exported_by(rewriter, raw), ExportedSpan(raw)
        changed = {semconv.INPUT_VALUE, semconv.OUTPUT_VALUE}
        assert recorded.attributes.items() <= exported.attributes.items() | {
            (key, recorded.attributes[key]) for key in changed
        }
        assert type(exported.input) is type(recorded.input)
        assert type(exported.output) is type(recorded.output)
    assert not rewriter._problems
