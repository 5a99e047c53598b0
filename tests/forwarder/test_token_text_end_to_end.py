"""Show thirty turns as text in a real MLflow server and in Weave's own server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from transformers import PreTrainedTokenizerFast

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv
from otel_rollout.turns.context_diff import restored
from tests.forwarder.tokens_support import demo_tokenizer
from tests.local_weave import LocalWeave
from tests.mlflow_server import stored

TURNS = 30
LINES = [said for said in (Path(__file__).parents[2] / "LICENSE").read_text().splitlines() if said]


class Undecoding(PreTrainedTokenizerFast):
    """A tokenizer that fails when this process decodes with it."""

    def decode(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("decoded in the training process")

    batch_decode = convert_ids_to_tokens = decode


@dataclass
class Answer:
    """The result of a model call."""

    token_ids: list[int]
    log_probs: list[float]


class Conversation(BaseModel):
    """The result of an agent loop."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]


class Agent:
    """Answers each line of a page with the next one."""

    def __init__(self) -> None:
        self.tokenizer = Undecoding(tokenizer_object=demo_tokenizer())
        self.parts = [demo_tokenizer().encode(said).ids for said in LINES[: 2 * TURNS]]
        self.prompts: list[list[int]] = []

    @rollout_trace_op(kind=semconv.KIND_LLM, token2text=True)
    async def generate(self, prompt_ids: list[int], turn: int) -> Answer:
        ids = self.parts[2 * turn + 1]
        return Answer(ids, [-0.25] * len(ids))

    @rollout_trace_op(kind=semconv.KIND_AGENT)
    async def run(self) -> Conversation:
        ids: list[int] = []
        mask: list[int] = []
        for turn in range(TURNS):
            ids += self.parts[2 * turn]
            self.prompts.append(list(ids))
            answer = await self.generate(ids, turn)
            mask += [0] * (len(ids) - len(mask)) + [1] * len(answer.token_ids)
            ids += answer.token_ids
        first = len(self.parts[0])
        return Conversation(prompt_ids=ids[:first], response_ids=ids[first:], response_mask=mask[first:])

    @rollout_trace_op(token2text=False)
    def untold(self) -> dict[str, Any]:
        return {"token_ids": self.parts[0]}

    @rollout_trace_op
    def several(self) -> list[dict[str, Any]]:
        return [{"token_ids": self.parts[0]}, {"token_ids": self.parts[1]}]


@pytest.fixture
def agent(
    fresh_process: None, server_uri: str, local_weave: LocalWeave, monkeypatch: pytest.MonkeyPatch
) -> Agent:
    for name, value in local_weave.environment.items():
        monkeypatch.setenv(name, value)
    otel_rollout.configure({"mlflow": {"tracking_uri": server_uri}, "weave": {}}, project_name="turns")
    return Agent()


@pytest.mark.filterwarnings("default")  # MLflow's own imports may warn
async def test_thirty_turns_are_shown_as_text(agent: Agent, server_uri: str, local_weave: LocalWeave) -> None:
    """MLflow and Weave show each turn's new text, and every prompt can be restored."""
    with rollout_trace_attr(step=1, token2text=True):
        agent.several()
        agent.untold()
        await agent.run()
    report = otel_rollout.shutdown(120)
    assert (report.lost, report.undelivered) == (0, 0)
    (trace,) = stored(server_uri, "turns")
    in_mlflow = [
        Shown(
            s.span_id,
            s.name,
            str(s.start_time_ns),
            s.inputs,
            s.outputs,
            s.attributes.get(semconv.TURN_CONTINUES),
        )
        for s in trace.data.spans
    ]
    in_weave = [
        Shown(
            call["id"],
            call["op_name"],
            call["started_at"],
            call["inputs"],
            call["output"],
            call["attributes"].get("turn.continues"),
        )
        for call in local_weave.calls("turns")
    ]
    for found in (in_mlflow, in_weave):
        _check(agent, sorted(found, key=lambda shown: shown.began))


class Shown(NamedTuple):
    """A span as a backend shows it."""

    id: str
    name: str
    began: str
    input: Any
    output: Any
    continues: str | None


def _check(agent: Agent, found: list[Shown]) -> None:
    decode = demo_tokenizer().decode
    sequences: dict[str, list[int]] = {}
    calls = [shown for shown in found if shown.name == "Agent.generate"]
    for turn, call in enumerate(calls):
        exported, output = call.input["prompt_ids"], call.output
        if call.continues is not None:
            assert exported["new"] == agent.parts[2 * turn]
            exported = restored(sequences[call.continues], exported["shared"], exported["new"])
        assert exported == agent.prompts[turn]
        assert output["token_ids"] == agent.parts[2 * turn + 1]
        sequences[call.id] = [*exported, *output["token_ids"]]
        assert output["prompt_text"] == decode(agent.parts[2 * turn], skip_special_tokens=False)
        assert output["response_text"] == decode(output["token_ids"], skip_special_tokens=False)
        assert output["log_probs"]["mean"] == -0.25
    assert len(calls) == TURNS
    assert sum(call.continues is None for call in calls) == 1
    whole = sequences[calls[-1].id]
    by_name = {shown.name: shown.output for shown in found}
    run, root = by_name["Agent.run"], by_name["rollout_trace"]
    assert [*run["prompt_ids"], *run["response_ids"]] == whole
    assert run["prompt_text"] + run["response_text"] == decode(whole, skip_special_tokens=False)
    assert [said["role"] for said in run["response_segments"]] == ["model", "environment"] * 29 + ["model"]
    assert root["response_text"] == run["response_text"]
    assert by_name["Agent.untold"] == {"token_ids": agent.parts[0]}
    assert [exported["response_text"] for exported in by_name["Agent.several"]] == [
        decode(ids, skip_special_tokens=False) for ids in agent.parts[:2]
    ]
