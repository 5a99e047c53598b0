"""Rollouts of an environment server in another process, as for prime-rl's orchestrator."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.spool_reader import Recorded
from tests.verifiers.conftest import ENVIRONMENTS
from tests.verifiers.running import context, until
from tests.verifiers.scripted_model import ScriptedModel

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def _served(place: Path) -> AsyncIterator[tuple[Any, subprocess.Popen[bytes]]]:
    """Start a server that is traced as this process is; yield a client and the server's process."""
    from verifiers.v1.serve.client import EnvClient

    address = place / "address"
    paths = [str(ENVIRONMENTS), str(ROOT), str(ROOT / "exporters"), str(ROOT / "autoload")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "tests.verifiers.programs.env_server", str(address)]
    server = subprocess.Popen(command, env=environment)
    try:
        await until(lambda: address.exists() or server.poll() is not None, 120)
        client = EnvClient(address.read_text())
        await client.wait_for_server_startup()
        yield client, server
        await client.close()
    finally:
        server.kill()  # what a test looks at is on disk by now
        server.wait(30)


async def _until_ended(recorded: Callable[[], list[Recorded]], rollouts: int) -> None:
    """Wait until the server's rollouts have ended on disk."""
    await until(lambda: sum(span.name == "rollout_trace" for span in recorded()) == rollouts)


async def _run(client: Any, model: ScriptedModel, prompt: str, index: int) -> Any:
    ctx = context(model)
    task = {"idx": index, "prompt": prompt, "answer": "hello"}
    return await client.run(ctx.client, ctx.model, ctx.sampling, task)


async def test_stamps_of_the_orchestrator_reach_the_servers_rollouts(
    model: ScriptedModel, recorded: Callable[[], list[Recorded]], tmp_path: Path
) -> None:
    """The server knows the task alone; step, versions and group are scores from the client's process."""
    from verifiers.v1.episode import GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo

    async with _served(tmp_path) as (client, _):
        episodes = [await _run(client, model, "no tool", index) for index in (4, 7)]
        for episode in episodes:
            episode.group = GroupInfo(id=f"group-{episode.task.data.idx}")
            work = TrainWorkInfo(step=3, policy=PolicySpan(start=1, end=2))
            episode.record_run(TrainRunInfo(id="run", work=work))
        episodes[0].traces[0].record_reward("best", 1.0)
        await _until_ended(recorded, 2)
    spans = recorded()
    for episode in episodes:
        (trace,) = episode.traces
        assert "otel_rollout_trajectories" not in episode.model_dump()
        (root,) = [span for span in spans if span.attributes.get("rollout.verifiers_trace_id") == trace.id]
        said = root.attributes
        assert said["rollout.sample_index"] == episode.task.data.idx
        assert not {"rollout.step", "rollout.rollout_n", "rollout.group_size"} & said.keys()
        late = {
            span.name: span.output
            for span in spans
            if span.span.trace_id == root.span.trace_id and "rollout.score_origin" in span.attributes
        }
        rewards = {"score best": 1.0, "score reward": 2.0} if episode is episodes[0] else {}
        assert late == {
            "score step": 3,
            "score validate": False,
            "score policy_version_min": 1,
            "score policy_version_max": 2,
            "score group_id": f"group-{episode.task.data.idx}",
            **rewards,
        }


async def test_rollout_that_the_orchestrator_cancels_is_an_error(
    model: ScriptedModel, recorded: Callable[[], list[Recorded]], tmp_path: Path
) -> None:
    """The server aborts it on the client's request."""
    async with _served(tmp_path) as (client, _):
        running = asyncio.create_task(_run(client, model, "model hangs", 1))
        await until(model.asked.is_set)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await _run(client, model, "no tool", 2)  # the server goes on
        await _until_ended(recorded, 2)
    roots = {s.attributes["rollout.sample_index"]: s for s in recorded() if s.name == "rollout_trace"}
    assert roots[1].span.status.code == 2
    assert roots[1].attributes["error.type"].endswith("CancelledError")
    assert roots[2].span.status.code != 2
