"""docs/weave.md says what the mapping does."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel

from otel_rollout.base.semconv import IDENTITY
from otel_rollout_weave import mapping, scores, settings
from tests.sdk_spans import JSON, ROLLOUT_RUN, Rollouts, decoded

PAGE = (Path(__file__).parent.parent.parent / "docs" / "weave.md").read_text()

Call = dict[str, Any]


def rows() -> dict[str, str]:
    """The table under "What maps to what"."""
    section = PAGE.partition("## What maps to what")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in lines)}


@pytest.fixture
def call() -> Call:
    """The call of a span with everything that the table names."""
    rollouts = Rollouts("a/b", {"rollout.run.id": ROLLOUT_RUN})
    rollouts.identity["rollout.agent_name"] = "tool_agent"
    given = {
        "input__value": "[1]",
        "output__value": '{"answer": 7}',
        "gen_ai__usage__input_tokens": 3,
        "gen_ai__usage__output_tokens": 5,
        "gen_ai__request__model": "qwen",
        "gen_ai__request__temperature": 0.5,
        "rollout__score__reward": 0.5,
        **JSON,
    }
    with contextlib.suppress(ValueError), rollouts.span("n" * 2000, "LLM", **given) as span:
        span.add_event("retried")
        span.add_link(otel.get_current_span().get_span_context())
        raise ValueError("no")
    [ended] = map(decoded, rollouts.ended())
    encoded: Call = json.loads(mapping.to_call(ended, "team/a-b", "team/a-b/run").encoded)
    [feedback] = scores.feedback_of(ended)
    return encoded | {"feedback": feedback.to_weave("team/a-b")}


IDENTITY_ROW = "`step`, `sample_index`, `rollout_n`, `validate`, `experiment_name`"
CHECKS: dict[str, Callable[[Call], bool]] = {
    "`project_name`": lambda call: settings.valid_name("a/b") == "a-b",
    IDENTITY_ROW: lambda call: all(
        call["attributes"][name] == {"step": 1, "sample_index": 7, "experiment_name": "grpo"}.get(name, 0)
        for name in re.findall(r"`(\w+)`", IDENTITY_ROW)
    ),
    "further keyword arguments of `rollout_trace_attr`": lambda call: (
        call["attributes"]["agent_name"] == "tool_agent"
    ),
    '`score("reward", 0.5)`': lambda call: (
        call["output"]["reward"] == 0.5
        and (call["feedback"]["feedback_type"], call["feedback"]["payload"]["value"]) == ("reward", 0.5)
        and mapping.kind_of({"openinference.span.kind": "EVALUATOR"}) == "scorer"
    ),
    "name of an operation or trajectory": lambda call: (
        (len(call["op_name"]), len(call["display_name"])) == (128, 1024)
    ),
    "arguments": lambda call: call["inputs"] == {"value": [1]},
    "result": lambda call: call["output"]["answer"] == 7,
    '`kind="LLM"`, `"TOOL"`, …': lambda call: call["attributes"]["weave"]["kind"] == "llm",
    "`gen_ai.usage.input_tokens`, `output_tokens`": lambda call: (
        call["summary"]["usage"]["qwen"]["total_tokens"] == 8
    ),
    "an exception": lambda call: (
        set(json.loads(call["exception"])) == {"type", "message", "traceback"}
        and call["summary"]["status_counts"]["error"] == 1
    ),
    "a trajectory": lambda call: call["thread_id"] == call["trace_id"] and call["turn_id"] == call["id"],
    "`step`": lambda call: (call["wb_run_step"], call["wb_run_id"]) == (1, "team/a-b/run"),
    "other span attributes": lambda call: call["attributes"]["gen_ai"]["request"]["temperature"] == 0.5,
    "events and links": lambda call: {"events", "links"} <= set(call["attributes"]["otel"]),
    "the rollout's run": lambda call: call["attributes"]["rollout_run_id"] == ROLLOUT_RUN,
}


def test_each_row_of_the_mapping_table_has_a_check() -> None:
    """Each check has a row, too."""
    assert list(rows()) == list(CHECKS)


@pytest.mark.parametrize("row", CHECKS)
def test_mapping_does_what_the_table_says(call: Call, row: str) -> None:
    """The left column becomes the right column."""
    assert CHECKS[row](call), rows()[row]


def test_every_part_of_the_identity_is_in_the_table() -> None:
    """A new part of the identity has to appear on the page."""
    assert {name.removeprefix("rollout.") for name in IDENTITY} <= set(
        re.findall(r"`(\w+)`", " ".join(rows()))
    )


def test_settings_table_names_every_variable_and_option() -> None:
    """No variable and no option of the settings is missing."""
    section = PAGE.partition("## Point it at Weave")[2].partition("\n## ")[0]
    named = dict(re.findall(r"^\| `(W\w+)`, `(\w+)`", section, re.MULTILINE))
    source = Path(settings.__file__).read_text()
    assert all(f'"{variable}"' in source for variable in named)
    assert set(named.values()) == set(settings.resolve.__annotations__) - {"timeout", "return"}
