"""The token usage of a trace in MLflow: that of its model calls."""

from __future__ import annotations

from typing import Any

import pytest

from otel_rollout.table.rows import rows_of
from tests.mlflow_server import stored
from tests.sdk_spans import Rollouts, decoded, deliver


@pytest.mark.parametrize("kind", ["AGENT", "CHAIN", "EMBEDDING"])
@pytest.mark.parametrize("inner_first", [False, True])
def test_only_model_calls_have_usage(
    uri: str, project: str, rollouts: Rollouts, exporter_for: Any, kind: str, inner_first: bool
) -> None:
    """MLflow would take the counts of a chain in place of those of the calls inside it."""
    other = {"gen_ai__usage__input_tokens": 100, "gen_ai__usage__output_tokens": 50}
    own = {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__output_tokens": 5}
    with rollouts.span("Agent.run", "AGENT"), rollouts.span("outer", kind, **other):
        for name in ("first", "second"):
            with rollouts.span(name, "LLM", **own):
                pass
    calls, around = (spans := rollouts.ended())[:2], spans[2:]
    exporter = exporter_for(uri)

    for batch in (calls, around) if inner_first else (spans,):
        deliver(exporter, batch)

    (trace,) = stored(uri, project)
    usage = trace.info.token_usage
    assert (usage["input_tokens"], usage["output_tokens"]) == (20, 10)
    (outer,) = trace.search_spans(name="outer")
    assert outer.get_attribute("gen_ai.usage.input_tokens") == 100


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"input_tokens": 7}, (7, 0, 7)),
        ({"input_tokens": -1, "output_tokens": 5}, (0, 5, 5)),
        ({"input_tokens": True, "output_tokens": 5}, (0, 5, 5)),
        ({"input_tokens": 12.0, "output_tokens": "5"}, (12, 5, 17)),
    ],
)
def test_counts_are_those_of_the_views(
    uri: str, project: str, rollouts: Rollouts, exporter_for: Any, counts: dict[str, Any], expected: Any
) -> None:
    """A count is an integer of 0 or more, also as text or float; the total is the sum of what is known."""
    given = {f"gen_ai.usage.{name}": value for name, value in counts.items()}
    with rollouts.span("Agent.run", "AGENT"), rollouts.span("generate", "LLM", **given):
        pass
    spans = rollouts.ended()

    deliver(exporter_for(uri), spans)

    (trace,) = stored(uri, project)
    usage = trace.info.token_usage
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == expected
    (row,) = (row for row in rows_of([decoded(span) for span in spans]) if row["kind"] == "LLM")
    assert (row.get("tokens_in", 0), row.get("tokens_out", 0)) == expected[:2]
