"""Model calls that other libraries recorded, read back by Weave's own client."""

from __future__ import annotations

import json

from otel_rollout.base import semconv
from otel_rollout.otlp import model_calls
from otel_rollout.otlp.outcome import CallTokens
from otel_rollout_weave.ids import call_id_of
from tests.otlp.foreign_spans import QUESTION
from tests.otlp.model_server import ANSWER
from tests.otlp.recorded_foreign import calls_in, exported
from tests.otlp.test_model_calls import WITH_CONTENT
from tests.sdk_spans import deliver


def test_foreign_calls_are_shown_as_ours(weave, project, exporter):
    """Weave has calls of kind llm with messages, replies, and token usage by model."""
    of_libraries = {library: exported(library, project) for library in WITH_CONTENT}

    deliver(exporter, [span for spans in of_libraries.values() for span in spans])

    found = {call["id"]: call for call in weave.calls(project)}
    for spans in of_libraries.values():
        assert all(call_id_of(span.trace_id, span.span_id) in found for span in spans)
        calls = [found[call_id_of(span.trace_id, span.span_id)] for span in calls_in(spans)]
        for call in calls[:2]:
            for usage in call["summary"].get("usage", {}).values():  # not around a call that has it
                assert (usage["input_tokens"], usage["output_tokens"]) == (120, 24)
            assert call["attributes"]["weave"]["kind"] == "llm"
            assert call["thread_id"] == call["trace_id"]
        assert QUESTION in json.dumps(calls[0]["inputs"])
        assert ANSWER in json.dumps(calls[1]["output"], ensure_ascii=False)


def test_trajectory_has_the_usage_of_its_calls_once(weave, project, exporter):
    """Weave's server adds up what is below a root: one inside another one counts once."""
    of_libraries = {library: exported(library, project) for library in WITH_CONTENT}

    deliver(exporter, [span for spans in of_libraries.values() for span in spans])

    roots = {
        library: call_id_of(spans[-1].trace_id, spans[-1].span_id) for library, spans in of_libraries.items()
    }
    summed = weave.usage(project, list(roots.values()))
    for library, spans in of_libraries.items():
        made = CallTokens()
        for span in spans:
            made.add(span.span_id, span.parent_id, model_calls.usage_of(span.attributes))
        told = sum(model["prompt_tokens"] for model in summed[roots[library]].values())
        assert told == made.total(semconv.GEN_AI_USAGE_INPUT_TOKENS), library
