"""docs/recording.md, the part before "Values": its examples run, and record what the page says."""

import re
from pathlib import Path

from otel_rollout.otlp.messages import request_of
from tests.spool_reader import tree

PAGE = Path(__file__).parents[2] / "docs" / "recording.md"
CALLS = PAGE.read_text().partition("\n## Values\n")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", CALLS, re.DOTALL)


def test_page_names_the_arguments_that_are_read_as_a_conversation():
    """An operation whose argument has another name is shown as one text."""
    (named,) = re.findall(r"\*\*The conversation\*\* of .*? arguments (.*?)that has", CALLS, re.DOTALL)
    names = re.findall(r"`(\w+)`", named)
    asked = {name: [{"role": "user", "content": name}] for name in reversed(names)}
    for name in names:
        assert [message.text for message in request_of(asked).messages] == [name]
        del asked[name]
    (shown,) = request_of({"history": [{"role": "user", "content": "Why?"}]}).messages
    assert shown.role == "input"


def test_examples_record_what_the_page_says(recorded):
    """All examples run one after the other, as a reader would type them."""
    namespace = {"__name__": "__main__"}
    for example in EXAMPLES:
        exec(example, namespace)
    spans = recorded()
    traces: dict[bytes, list] = {}
    for span in spans:
        traces.setdefault(span.span.trace_id, []).append(span)
    assert [tree(of_one) for of_one in traces.values()] == [
        {"rollout_trace": []},
        {"rollout_trace": []},
        {"rollout_trace": ["search", "score reward"]},
        {"rollout_trace": ["stream"]},
        {"rollout_trace": ["RetryingClient.generate"]},
        {"debate": [{"opponent": ["search", "score reward"]}, "score reward"]},
        {"rollout_trace": ["search", "score reward", "score solved", "score advantage", "score trained_at"]},
        {"score advantage": []},
        {"score reward": []},
        {"score batch": []},
        {"rollout_trace": ["divide"]},
    ]
    by_name = {span.name: span for span in spans}
    found = next(span for span in spans if span.name == "search")
    assert found.input == {"query": "wool", "limit": 2}
    assert found.output == ["wool 0", "wool 1"]
    assert by_name["stream"].output == ["a", "b"]
    assert by_name["stream"].attributes["rollout.generator.exhausted"] is False
    assert by_name["stream"].span.status.code == 0
    assert by_name["opponent"].attributes["rollout.score.reward"] == 0.0
    assert by_name["debate"].attributes["rollout.score.reward"] == 1.0
    assert by_name["divide"].span.status.message == "ZeroDivisionError: division by zero"
    assert spans[-1].span.status.code == 0
