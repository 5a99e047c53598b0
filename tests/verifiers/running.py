"""Play episodes of the tests' environment in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.verifiers.scripted_model import ScriptedModel


def context(model: ScriptedModel) -> Any:
    """Return verifiers' description of the scripted model."""
    from verifiers.v1.clients import EvalClientConfig, ModelContext

    return ModelContext(model="scripted", client=EvalClientConfig(base_url=model.url, api_key_var="UNSET"))


@asynccontextmanager
async def played(env: Any, model: ScriptedModel, siblings: int = 1) -> AsyncIterator[tuple[list[Any], Any]]:
    """Serve an environment; yield its planned episodes and the model."""
    async with env.serving():
        yield [slot for task in env.taskset for slot in env.slots(task, siblings)], context(model)


async def play(env: Any, model: ScriptedModel, siblings: int = 1) -> list[Any]:
    """Return an episode per task and sibling, all run at the same time."""
    async with played(env, model, siblings) as (slots, ctx):
        return list(await asyncio.gather(*(env.run_slot(slot, ctx) for slot in slots)))


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition does not hold")
        await asyncio.sleep(0.02)
