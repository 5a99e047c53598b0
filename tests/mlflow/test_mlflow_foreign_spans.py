"""Model calls that other libraries recorded, read back with MLflow's own client."""

from __future__ import annotations

import json

from tests.mlflow_server import stored
from tests.otlp.foreign_spans import QUESTION
from tests.otlp.model_server import ANSWER
from tests.otlp.recorded_foreign import calls_in, exported
from tests.otlp.test_model_calls import WITH_CONTENT
from tests.sdk_spans import deliver


def test_foreign_calls_are_shown_as_ours(uri, project, exporter_for):
    """MLflow has messages, replies, model, tokens and the step's session."""
    of_libraries = {library: exported(library, project) for library in WITH_CONTENT}

    deliver(exporter_for(uri), [span for spans in of_libraries.values() for span in spans])

    traces = {trace.info.trace_metadata["mlflow.trace.session"]: trace for trace in stored(uri, project)}
    for library, spans in of_libraries.items():
        trace = traces[f"step 1 - {library}"]
        found = {int(span.span_id, 16): span for span in trace.data.spans}
        assert len(found) == len(spans)
        calls = [found[int(span.span_id, 16)] for span in calls_in(spans)]
        for call in calls[:2]:
            assert call.span_type == "CHAT_MODEL"
            assert call.get_attribute("mlflow.llm.model")
            usage = call.get_attribute("mlflow.chat.tokenUsage")
            assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (120, 24, 144)
        assert QUESTION in json.dumps(calls[0].inputs.get("messages", calls[0].inputs.get("input")))
        assert ANSWER in json.dumps(calls[1].outputs, ensure_ascii=False)
        assert json.loads(trace.info.trace_metadata["mlflow.trace.tokenUsage"])["output_tokens"] >= 48
