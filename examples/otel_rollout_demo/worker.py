"""Run many trajectories at a time in an asyncio Ray actor, each in its own trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_rollout import rollout_trace_attr, score
from otel_rollout_demo.agent_loop import AgentLoopOutput, ToolAgentLoop
from otel_rollout_demo.reward import compute_score
from otel_rollout_demo.tokenizer import ChatTokenizer, load_tokenizer
from otel_rollout_demo.tools import Tool

if TYPE_CHECKING:
    from otel_rollout_demo.dataset import Row


@dataclass(frozen=True)
class Rollout:
    """A trajectory to sample: its sample, its step, its sampling parameters."""

    row: Row
    step: int
    rollout_n: int
    validate: bool
    policy_version: int
    sampling_params: dict[str, Any]


@dataclass(frozen=True)
class Trajectory:
    """A trajectory's result for the trainer."""

    output: AgentLoopOutput
    reward: float


class AgentLoopWorker:
    """Run trajectories with one inference server."""

    def __init__(self, server: Any, model_name: str, model: str | None, calculator: Tool) -> None:
        """Create a worker.

        ``server`` is an actor handle. ``model`` names the model whose tokenizer is used, None the
        demo's own.
        """
        self._server = server
        self._model_name = model_name
        self._chat = ChatTokenizer(load_tokenizer(model))
        self._tools = [calculator]

    async def ready(self) -> None:
        """Call the server and the tools once: the first call connects, and would take longer than others."""
        await self._server.ready.remote()
        for tool in self._tools:
            instance_id, _ = await tool.create()
            await tool.release(instance_id)

    async def run_trajectory(self, rollout: Rollout) -> Trajectory:
        """Sample one trajectory, and compute its reward."""
        row = rollout.row
        sample_index = row["extra_info"]["index"]
        split = row["extra_info"]["split"]
        with rollout_trace_attr(
            sample_index=sample_index,
            step=rollout.step,
            rollout_n=rollout.rollout_n,
            validate=rollout.validate,
            agent_name=row["agent_name"],
            policy_version_min=rollout.policy_version,
            policy_version_max=rollout.policy_version,
        ) as trajectory:
            trajectory.set_input({"messages": row["prompt"]})
            loop = ToolAgentLoop(self._server, self._model_name, self._chat, self._tools)
            output = await loop.run(
                raw_prompt=row["prompt"],
                sampling_params=rollout.sampling_params,
                request_id=f"{split}-step{rollout.step}-sample{sample_index}-n{rollout.rollout_n}",
                tools_kwargs=row["extra_info"]["tools_kwargs"],
            )
            result = compute_score(
                data_source=row["data_source"],
                solution=loop.last_words(),
                ground_truth=row["reward_model"]["ground_truth"],
            )
            score("reward", result.score)
            score("answer_format", result.answer_format)
            trajectory.set_output(
                {
                    "messages": loop.messages[len(row["prompt"]) :],
                    "answer": result.answer,
                    "ground_truth": row["reward_model"]["ground_truth"],
                    "reward": result.score,
                    "turns": output.num_turns,
                    "errors": output.errors,
                }
            )
            return Trajectory(output, result.score)
