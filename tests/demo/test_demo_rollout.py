"""Run whole trajectories without Ray; the server runs in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from otel_rollout_demo.driver import Plan, _start_ray, schedule
from otel_rollout_demo.server import InferenceServer, ScriptedServer, TransformersServer
from otel_rollout_demo.tokenizer import load_tokenizer
from otel_rollout_demo.tools import CalculatorTool
from otel_rollout_demo.worker import AgentLoopWorker, Rollout, Trajectory


class Method:
    """A method of an actor handle, called by ``remote``."""

    def __init__(self, function: Any) -> None:
        self.remote = function


class Handle:
    """A server with the interface of its Ray actor handle."""

    def __init__(self, server: InferenceServer) -> None:
        self.generate = Method(server.generate)


async def roll_out(server: InferenceServer, rollout: Rollout, model: str | None = None) -> Trajectory:
    """Run one trajectory on a fresh worker."""
    await server.update_weights(rollout.policy_version)
    return await AgentLoopWorker(
        Handle(server), await server.ready(), model, CalculatorTool()
    ).run_trajectory(rollout)


def test_schedule_has_training_steps_then_a_validation() -> None:
    """Steps have n trajectories of each sample; the greedy validation has one of each."""
    *training, validation = schedule(Plan(steps=2, samples=3, n=4))
    assert [(batch.step, batch.validate, len(batch.rollouts)) for batch in training] == [
        (1, False, 12),
        (2, False, 12),
    ]
    assert [rollout.rollout_n for rollout in training[0].rollouts[:5]] == [0, 1, 2, 3, 0]
    assert [batch.rollouts[0].policy_version for batch in training] == [0, 1]
    assert (validation.step, validation.validate, len(validation.rollouts)) == (2, True, 6)
    assert {rollout.sampling_params["temperature"] for rollout in validation.rollouts} == {0.0}


async def test_response_mask_marks_the_models_tokens() -> None:
    """Tokens of the model have mask 1, tokens of the tool have mask 0."""
    server = ScriptedServer(seed=0)
    *_, validation = schedule(Plan())
    trajectory = await roll_out(server, validation.rollouts[0])
    output = trajectory.output
    assert trajectory.reward == 1
    assert len(output.response_ids) == len(output.response_mask)
    decode = load_tokenizer().decode
    by_mask = {
        value: decode(
            [
                id_
                for id_, mask in zip(output.response_ids, output.response_mask, strict=True)
                if mask == value
            ]
        )
        for value in (0, 1)
    }
    assert "<tool_response>" in by_mask[0]
    assert "<tool_response>" not in by_mask[1]
    assert by_mask[1].count("<tool_call>") == by_mask[0].count("<tool_response>")
    assert "####" in by_mask[1]
    assert "####" not in by_mask[0]


async def test_default_run_has_errors_and_rising_rewards() -> None:
    """With default settings tools and parser report errors.

    Rewards rise with each batch.
    """
    server = ScriptedServer(seed=0)
    rewards, errors = [], []
    for batch in schedule(Plan()):
        trajectories = await asyncio.gather(*(roll_out(server, rollout) for rollout in batch.rollouts))
        rewards.append(sum(trajectory.reward for trajectory in trajectories) / len(trajectories))
        errors += [error for trajectory in trajectories for error in trajectory.output.errors]
    assert rewards == sorted(rewards)
    assert 0.2 < rewards[0] < rewards[-1]
    for words in ("division by zero", "not valid JSON", "no function 'python'"):
        assert any(words in error for error in errors)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a randomly initialised causal LM to disk, with the demo's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("model")
    tokenizer = load_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


async def test_causal_lm_runs_through_the_agent_loop(tiny_model: Path) -> None:
    """A causal LM from disk runs with its own tokenizer and returns its log-probs."""
    server = TransformersServer(str(tiny_model), seed=0)
    step, validation = schedule(Plan(steps=1, samples=1, n=2))
    for rollout in (*step.rollouts, validation.rollouts[0]):
        trajectory = await roll_out(server, rollout, model=str(tiny_model))
        assert len(trajectory.output.response_ids) == len(trajectory.output.response_mask) > 0
    output = await server.generate("r", [1, 2, 3], {"temperature": 1.0, "top_p": 0.9, "max_tokens": 5})
    assert output.log_probs is not None
    assert len(output.log_probs) == len(output.token_ids) <= 5
    assert max(output.log_probs) < 0


async def test_full_context_ends_the_trajectory(tiny_model: Path) -> None:
    """A model without room in its context generates nothing and reports "aborted"."""
    server = TransformersServer(str(tiny_model), seed=0)
    output = await server.generate("r", [1] * 512, {"temperature": 1.0, "top_p": 1.0, "max_tokens": 5})
    assert (output.token_ids, output.stop_reason) == ([], "aborted")


class SlowRay:
    """Ray on a busy machine, where a node needs several starts."""

    def __init__(self, failures: int, message: str) -> None:
        self.failures = failures
        self.message = message
        self.starts = 0

    def init(self, **options: object) -> None:
        assert options["num_cpus"] == 4
        self.starts += 1
        if self.starts <= self.failures:
            raise Exception(self.message)


def test_node_that_ray_gave_up_on_is_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Ray waits 30 s and has no setting for it; one line says what happens."""
    ray = SlowRay(1, "The current node timed out during startup. This could happen because …")
    _start_ray(ray, cpus=4)
    assert ray.starts == 2
    assert "did not start within Ray's limit of 30 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "starts"), [("The current node timed out during startup.", 3), ("no space left", 1)]
)
def test_ray_that_does_not_start_fails_the_demo(message: str, starts: int) -> None:
    """A third timeout, or any other error of Ray's, is raised."""
    ray = SlowRay(10, message)
    with pytest.raises(Exception, match=message):
        _start_ray(ray, cpus=4)
    assert ray.starts == starts
