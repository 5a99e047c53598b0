"""Tasks whose prompt says what the scripted model and the rewards do."""

from __future__ import annotations

import asyncio

import verifiers.v1 as vf

PROMPTS = ["sum of 2 and 3", "twice: 1 and 2, then 4", "no tool", "wrong sum of 2 and 2"]


class SumsData(vf.TaskData):
    """A sum and its answer."""

    answer: str = ""


class SumsTask(vf.Task[SumsData]):
    """Scored by the last reply."""

    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        """Whether the reply is the answer."""
        if "reward raises" in self.data.prompt:
            raise ValueError("the reward broke")
        if "reward hangs" in self.data.prompt:
            await asyncio.sleep(600)
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        """Two named rewards of one function."""
        return {"brief": float(len(trace.last_reply) < 5), "polite": 0.0}

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        """Number of model calls."""
        return float(len(trace.calls))


class SumsConfig(vf.TasksetConfig):
    """Options of the tasks.

    Attributes:
        prompts: prompts in place of the usual ones, separated by a vertical bar.
    """

    prompts: str = ""


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    """Four tasks, or those that the configuration names."""

    def load(self) -> list[SumsTask]:
        """Return the tasks."""
        prompts = self.config.prompts.split("|") if self.config.prompts else PROMPTS
        answers = {PROMPTS[0]: "5", PROMPTS[1]: "7", PROMPTS[2]: "hello", PROMPTS[3]: "4"}
        return [
            SumsTask(SumsData(prompt=prompt, answer=answers.get(prompt, "5")), self.config.task)
            for prompt in prompts
        ]
