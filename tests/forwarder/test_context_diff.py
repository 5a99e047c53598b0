"""What is new in a turn: found whatever becomes of a context, and put together again without a loss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rollout.base import semconv
from otel_rollout.forwarder.context_diff import restored
from otel_rollout.forwarder.enrichment import Enrichment
from tests.forwarder.tokens_support import Told, demo_tokenizer, line, prompts, stored

TURN = (semconv.TURN_CONTINUES, semconv.TURN_SHARED, semconv.TURN_LENGTH)
ids = st.lists(st.integers(0, 5), max_size=40)
ids_of_any_size = st.lists(st.integers(0, (1 << 32) - 1), max_size=30)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[int], list[int], int, int]]:
    """Model calls of a trajectory: prompt, answer, begin and end.

    Each prompt is made of the sequence of an earlier call: with more behind it, an edit in the middle, the
    beginning or the end cut off, or of nothing. Calls may run at the same time.
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


@settings(max_examples=200)
@given(histories=st.lists(histories(), min_size=1, max_size=2), order=st.randoms(use_true_random=False))
def test_prompts_are_the_same_again(histories: list[Any], order: Any) -> None:
    """Put together from what exporters are told, each prompt is exactly what was recorded.

    Whatever was edited, cut or begun anew, in whichever order lines come, from several trajectories at once,
    and again where lines are sent again.
    """
    recorded = [
        (trace, line(number, {"prompt_ids": call[0]}, {"token_ids": call[1]}, span=call[2:], trace=trace))
        for trace, calls in enumerate(histories, start=1)
        for number, call in enumerate(calls, start=1)
    ]
    order.shuffle(recorded)
    enrichment = Enrichment(Path())
    first = [(trace, enrichment.line(raw)) for trace, raw in recorded]
    again = [(trace, enrichment.line(raw)) for trace, raw in recorded]
    for lines in (first, again):
        for trace, calls in enumerate(histories, start=1):
            told = [Told(raw) for of, raw in lines if of == trace]
            assert prompts(told) == {
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


@settings(max_examples=300)
@given(data=st.data(), history=histories())
def test_prompts_of_any_shape_are_the_same_again(data: st.DataObject, history: Any) -> None:
    """A prompt that is no list of token ids is nobody's beginning, and neither is one that was not recorded.

    Prompts may stand among the arguments, in the output, or in both, and there differ; answers may be of any
    shape as well. Wherever one is told by reference, what the reference gives is what was recorded.
    """
    shapes = st.sampled_from(list(SHAPES.values())) | st.just(SHAPES["as it is"])
    start = data.draw(st.lists(st.integers(1, 3), max_size=20))
    recorded, enrichment = [], Enrichment(Path())
    for number, (prompt, answer, began, ended) in enumerate(history, start=1):
        whole = [*start, *prompt]
        given, again = data.draw(shapes)(whole), data.draw(st.just({}) | shapes.map(lambda f, w=whole: f(w)))
        said = data.draw(
            st.sampled_from([start, answer, [start], [*answer, "… (9 more items)"], [*start, 1.0], "text"])
        )
        output = {**again, "token_ids": said}
        recorded.append(line(number, given, output, span=(began, ended)))
    told = {call.id: call for call in map(Told, map(enrichment.line, recorded))}
    assert not enrichment._said

    def restored_in(call: Told, values: dict[str, Any]) -> dict[str, Any]:
        if "batch" in values:
            return {**values, "batch": [restored_in(call, value) for value in values["batch"]]}
        prompt = values.get("prompt_ids")
        if not isinstance(prompt, dict) or "continues" not in prompt:
            return values
        before = told[prompt["continues"]]
        (of_before,) = {
            tuple(found)
            for found in _prompts(restored_in(before, before.input), restored_in(before, before.output))
        }
        whole = restored([*of_before, *before.output["token_ids"]], prompt["shared"], prompt["new"])
        assert len(whole) == prompt["length"]
        return {**values, "prompt_ids": whole}

    for raw in map(Told, recorded):
        for values, shown in ((raw.input, told[raw.id].input), (raw.output, told[raw.id].output)):
            assert json.dumps(restored_in(told[raw.id], shown)) == json.dumps(values)


def _prompts(*values: Any) -> Iterator[list[int]]:
    """What a reader finds under ``prompt_ids``."""
    for value in values:
        yield from [value["prompt_ids"]] if isinstance(value.get("prompt_ids"), list) else []
        yield from _prompts(*value.get("batch", ()))


def test_an_image_s_placeholder_makes_a_prompt_nobody_s_beginning() -> None:
    """The next turn, which begins as the answer did, is not told by a prompt that counted as empty."""
    answer = list(range(20, 60))
    enrichment = Enrichment(Path())
    enrichment.line(line(1, {"prompt_ids": [1, {"image": 0}, 2]}, {"token_ids": answer}))
    following = Told(enrichment.line(line(2, {"prompt_ids": [*answer, 3]}, {"token_ids": [4]})))
    assert following.input["prompt_ids"] == [*answer, 3]


def test_a_turn_is_told_by_what_is_new_in_it() -> None:
    """It names the call it continues, what it shares with that and its answer, and its own length."""
    enrichment = Enrichment(Path())
    first = enrichment.line(line(1, {"prompt_ids": list(range(100))}, {"token_ids": [7, 8]}))
    given = {"prompt_ids": [*range(100), 7, 8, 9]}
    second = Told(enrichment.line(line(2, given, {"token_ids": [5]})))
    assert first == line(1, {"prompt_ids": list(range(100))}, {"token_ids": [7, 8]})
    assert second.input["prompt_ids"] == {"continues": f"{1:016x}", "shared": 102, "new": [9], "length": 103}
    assert second.attributes[semconv.TURN_CONTINUES] == f"{1:016x}"
    assert (second.attributes[semconv.TURN_SHARED], second.attributes[semconv.TURN_LENGTH]) == ("102", "103")


def test_branches_continue_what_had_ended_when_they_began() -> None:
    """Two calls at once have nothing of one another; each continues the call before both."""
    enrichment = Enrichment(Path())
    start = list(range(50))
    enrichment.line(line(1, {"prompt_ids": start}, {"token_ids": [1]}))
    for number, new in ((2, [60, 61]), (3, [60, 62])):
        prompt = [*start, 1, *new]
        told = Told(enrichment.line(line(number, {"prompt_ids": prompt}, {"token_ids": [2]}, span=(20, 40))))
        assert told.input["prompt_ids"]["continues"] == f"{1:016x}"
        assert told.input["prompt_ids"]["new"] == new


def test_messages_stay_whole_and_are_counted() -> None:
    """A chat view has to show all of them; attributes say which are new. With ``all`` it gets those."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    more = [*said, {"role": "user", "content": "c"}]
    for told, shown in (("tokens", more), ("all", more[2:]), ("whole", more)):
        enrichment = Enrichment(Path(), told)
        enrichment.line(line(1, {"messages": said}, {"content": "b"}))
        second = Told(enrichment.line(line(2, {"messages": more}, {"content": "d"})))
        assert second.input["messages"] == shown
        counted = second.attributes.get(semconv.TURN_SHARED), second.attributes.get(semconv.TURN_LENGTH)
        assert counted == ((None, None) if told == "whole" else ("2", "3"))


def test_what_is_no_model_call_is_continued_by_none() -> None:
    """What only prepared a prompt or messages has not said them: the first model call is told in full."""
    enrichment = Enrichment(Path())
    prompt, said = list(range(40)), [{"role": "user", "content": "a"}]
    for number, made in ((1, {"prompt_ids": prompt}), (2, {"messages": said})):
        enrichment.line(line(number, made, made, kind=semconv.KIND_CHAIN))
    first = line(3, {"prompt_ids": prompt}, {"token_ids": [1]})
    second = line(4, {"messages": said}, {"content": "b"})
    assert enrichment.line(first) == first
    assert enrichment.line(second) == second


@pytest.mark.parametrize("told", ["tokens", "all"])
def test_a_span_with_messages_and_ids_says_once_what_is_new(told: str) -> None:
    """The attributes are of its messages; the ids have their reference in themselves."""
    said = [{"role": "user", "content": "a"}]
    ids = list(range(40))
    enrichment = Enrichment(Path(), told)
    enrichment.line(line(1, {"messages": said, "prompt_ids": ids}, {"token_ids": [1]}))
    more = {"messages": [*said, {"role": "user", "content": "c"}], "prompt_ids": [*ids, 1, 2]}
    raw = enrichment.line(line(2, more, {"token_ids": [3]}))
    second = Told(raw)
    assert all(raw.count(b'"%b"' % name.encode()) == 1 for name in TURN)
    assert [second.attributes[name] for name in TURN] == [f"{1:016x}", "1", "2"]
    assert second.input["prompt_ids"] == {"continues": f"{1:016x}", "shared": 41, "new": [2], "length": 42}
    other = {"messages": [{"role": "user", "content": "another"}], "prompt_ids": [*ids, 1, 2]}
    third = Told(enrichment.line(line(3, other, {"token_ids": [3]})))
    assert third.attributes.keys().isdisjoint(TURN)
    assert third.input["prompt_ids"]["shared"] == 42


def test_what_was_told_once_is_not_told_twice() -> None:
    """A line that comes back from an exporter's file, with the attributes that it got, has them once."""
    said = [{"role": "user", "content": "a"}]
    more = {"messages": [*said, {"role": "user", "content": "c"}]}
    first, second = line(1, {"messages": said}, {"content": "b"}), line(2, more, {"content": "d"})
    enrichment = Enrichment(Path())
    exported = [enrichment.line(first), enrichment.line(second)]
    again = Enrichment(Path())
    assert [again.line(raw) for raw in exported] == exported


def test_an_image_is_told_once() -> None:
    """Later spans of the trace say what it is and where it is; other traces have it themselves."""
    enrichment = Enrichment(Path())
    image = "data:image/png;base64," + "iVBORw0KGgo" * 200
    said = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]}
    first = line(1, said, {"content": "a cat"})
    assert enrichment.line(first) == first
    assert enrichment.line(first) == first
    (message,) = Told(enrichment.line(line(2, said, {"content": "a dog"}))).input["messages"]
    assert message["content"][0]["image_url"]["url"].startswith("<image/png of 1650 bytes, sha256 ")
    assert message["content"][0]["image_url"]["url"].endswith(f"is in span {1:016x}>")
    other = line(3, said, {"content": "a cat"}, trace=2)
    assert enrichment.line(other) == other


def test_other_lines_go_through_untouched() -> None:
    """A line with nothing of the kind is the same object; one that cannot be read is the same bytes."""
    enrichment = Enrichment(Path())
    plain = line(1, {"query": "x"}, {"prompt_ids_of": [1]})
    assert enrichment.line(plain) is plain
    broken = line(2, {"prompt_ids": [1]}, {}).replace(b'"spanId"', b'"nobody"')
    assert enrichment.line(broken) is broken


def test_memory_is_bounded(monkeypatch: Any) -> None:
    """Of traces beyond the bound the oldest are forgotten: their next turn is told in full."""
    monkeypatch.setattr("otel_rollout.forwarder.enrichment.MEMORY_BYTES", 50_000)
    enrichment = Enrichment(Path())
    prompt = list(range(1000))
    for trace in range(1, 101):
        enrichment.line(line(1, {"prompt_ids": prompt}, {"token_ids": [1]}, trace=trace))
    assert enrichment._size <= 50_000
    oldest = line(2, {"prompt_ids": [*prompt, 1]}, {"token_ids": [1]}, trace=1)
    assert enrichment.line(oldest) == oldest
    newest = Told(enrichment.line(line(2, {"prompt_ids": [*prompt, 1]}, {"token_ids": [1]}, trace=100)))
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
    """A node directory that has the demo's tokenizer, and the name it has there."""
    node_dir = tmp_path_factory.mktemp("node")
    return node_dir, stored(node_dir, demo_tokenizer())


@settings(max_examples=200)
@given(spans=st.lists(st.tuples(anything, anything, st.booleans()), min_size=1, max_size=4))
def test_whatever_a_span_holds_it_is_told(spans: list[Any], node: tuple[Path, str]) -> None:
    """Values of any shape under names that mean something: nothing goes wrong, and the rest stays."""
    node_dir, name = node
    enrichment = Enrichment(node_dir, "all")
    for number, (asked, answered, shows_text) in enumerate(spans, start=1):
        raw = line(number, asked, answered, tokenizer=name if shows_text else None)
        told, recorded = Told(enrichment.line(raw)), Told(raw)
        changed = {semconv.INPUT_VALUE, semconv.OUTPUT_VALUE}
        assert recorded.attributes.items() <= told.attributes.items() | {
            (key, recorded.attributes[key]) for key in changed
        }
        assert type(told.input) is type(recorded.input)
        assert type(told.output) is type(recorded.output)
    assert not enrichment._said
