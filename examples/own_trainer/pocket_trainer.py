"""Train a policy of two numbers to use a tool: REINFORCE with groups, in a hundred lines without a library.

It knows nothing of tracing. Conversations are advanced together, as trainers do that generate in batches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__version__ = "1.0"
Message = dict[str, Any]


@dataclass(eq=False)
class Conversation:
    """One attempt at a question."""

    answer: str
    messages: list[Message]
    action: str = ""
    rewards: dict[str, float] = field(default_factory=dict)
    advantage: float = 0.0


class Policy:
    """Chooses between the tool and a guess, by one logit for each."""

    def __init__(self, seed: int) -> None:
        self.logits = {"calculate": 0.0, "guess": 0.0}
        self._random = random.Random(seed)  # noqa: S311

    def probabilities(self) -> dict[str, float]:
        """Return the probability of each action."""
        total = sum(math.exp(logit) for logit in self.logits.values())
        return {action: math.exp(logit) / total for action, logit in self.logits.items()}

    def generate(self, conversations: Sequence[Conversation]) -> list[Message]:
        """Return the next message of each conversation, in one batch."""
        return [self._reply(conversation) for conversation in conversations]

    def _reply(self, conversation: Conversation) -> Message:
        last = conversation.messages[-1]
        if last["role"] == "tool":
            return {"role": "assistant", "content": last["content"]}
        chances = self.probabilities()
        (conversation.action,) = self._random.choices(list(chances), list(chances.values()))
        if conversation.action == "guess":
            return {"role": "assistant", "content": str(self._random.randint(0, 99))}
        function = {"name": "calculate", "arguments": {"expression": last["content"]}}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "function": function}]}


class Trainer:
    """Generate groups of conversations, score them, and learn from what is better than its group."""

    def __init__(
        self,
        policy: Policy,
        questions: Mapping[str, str],
        tools: Mapping[str, Callable[..., Any]],
        reward_functions: Mapping[str, Callable[[Conversation], float]],
        group_size: int = 4,
    ) -> None:
        self.policy, self.questions, self.group_size = policy, questions, group_size
        self.tools, self.reward_functions = dict(tools), reward_functions
        self.step = 0

    def train_step(self) -> list[Conversation]:
        """Generate, score and learn; return the conversations."""
        self.step += 1
        conversations = self.start()
        running = conversations
        while running:
            for conversation, reply in zip(running, self.policy.generate(running), strict=True):
                conversation.messages.append(reply)
            running = [conversation for conversation in running if self.call_tools(conversation)]
        for conversation in conversations:
            for name in self.reward_functions:
                conversation.rewards[name] = self.reward(conversation, name)
        self.learn(conversations)
        return conversations

    def start(self) -> list[Conversation]:
        """Begin a group of conversations for each question."""
        return [
            Conversation(answer, [{"role": "user", "content": question}])
            for question, answer in self.questions.items()
            for _ in range(self.group_size)
        ]

    def call_tools(self, conversation: Conversation) -> bool:
        """Answer the last message's tool calls; return whether there were any."""
        calls = conversation.messages[-1].get("tool_calls", [])
        for call in calls:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            try:
                content = str(self.tools[name](**arguments))
            except Exception as error:  # noqa: BLE001 - the policy shall see it
                content = f"Error: {error}"
            conversation.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return bool(calls)

    def reward(self, conversation: Conversation, name: str) -> float:
        """Compute one reward."""
        return self.reward_functions[name](conversation)

    def learn(self, conversations: Sequence[Conversation]) -> None:
        """Move the policy by each conversation's advantage over the mean of its group."""
        for first in range(0, len(conversations), self.group_size):
            group = conversations[first : first + self.group_size]
            totals = [sum(conversation.rewards.values()) for conversation in group]
            for conversation, total in zip(group, totals, strict=True):
                conversation.advantage = total - sum(totals) / len(totals)
        for conversation in conversations:
            chances = self.policy.probabilities()
            for action, chance in chances.items():
                gradient = (action == conversation.action) - chance
                self.policy.logits[action] += 0.2 * conversation.advantage * gradient
