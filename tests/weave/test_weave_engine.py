"""The spans of an inference engine in Weave: no usage of their own."""

from __future__ import annotations

from typing import Any

import pytest

from otel_rollout.base import semconv
from otel_rollout_weave.ids import call_id_of
from tests.engine_spans import Call, spans_in, trajectory
from tests.sdk_spans import deliver


@pytest.mark.parametrize(
    "names", [Call().tokens, ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")]
)
def test_usage_is_that_of_the_model_calls(weave: Any, project: str, exporter: Any, names: Any) -> None:
    """Weave's server adds up what is below a root; the engine's span repeats the counts of the call above."""
    spans = spans_in(trajectory([Call(tokens=names), Call()], project))

    deliver(exporter, spans)

    (root,) = [call_id_of(span.trace_id, span.span_id) for span in spans if not span.parent_id]
    (usage,) = weave.usage(project, [root])[root].values()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (466, 92)
    kinds = {
        call["op_name"].rpartition("/")[2].partition(":")[0]: call["attributes"].get("weave", {}).get("kind")
        for call in weave.calls(project)
    }
    assert (kinds["generate"], kinds[semconv.ENGINE_REQUEST], kinds["queue"]) == ("llm", None, None)
