"""Trajectories on Weave's Agents pages: its endpoint for OTLP, and the exporter ``otlp``."""

from __future__ import annotations

from typing import Any

from otel_rollout_otlp import OtlpSpanExporter
from tests.local_weave import API_KEY, ENTITY
from tests.sdk_spans import Rollouts, deliver


def test_agents_endpoint_shows_model_calls_and_identity(local_weave: Any, project: str) -> None:
    """Tree, model, tokens and conversation have columns; the identity has attributes of its types."""
    rollouts = Rollouts(project)
    with rollouts.span("Agent.run", "AGENT") as run:
        run.set_attribute("gen_ai.conversation.id", "step 1")
        with rollouts.span("generate", "LLM") as call:
            call.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "policy",
                    "gen_ai.usage.input_tokens": 3,
                    "gen_ai.usage.output_tokens": 5,
                }
            )
    spans = rollouts.ended()
    exporter = OtlpSpanExporter(
        endpoint=f"{local_weave.url}/agents/otel/v1/traces",
        headers={"project_id": f"{ENTITY}/{project}", "wandb-api-key": API_KEY},
    )

    deliver(exporter, spans)
    exporter.shutdown()

    columns = {"int": "rollout.step", "string": "rollout.experiment_name"}
    found = {span["span_name"]: span for span in local_weave.agent_spans(project, **columns)}
    assert set(found) == {"Agent.run", "generate"}
    run_found, call_found = found["Agent.run"], found["generate"]
    assert call_found["parent_span_id"] == run_found["span_id"]
    assert run_found["conversation_id"] == "step 1"
    assert (call_found["operation_name"], call_found["request_model"]) == ("chat", "policy")
    assert (call_found["input_tokens"], call_found["output_tokens"]) == (3, 5)
    assert call_found["custom_attrs_int"]["rollout.step"] == 1
    assert call_found["custom_attrs_string"]["rollout.experiment_name"] == "grpo"
