"""Make siblings of a group for tests: turns, conversations and hypothesis strategies of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from otel_rollout.look.analysis.group.siblings import Sibling, Siblings
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Score, Summary
from otel_rollout.look.conversation.turn import Turn
from otel_rollout.otlp.messages import Call

CALLS = (Call("add", {"a": 1}, "one"), Call("add", {"a": 1}, "two"), Call("add", {"a": 2}, "one"))
"""The first two are equal but for their ids."""
TURNS = st.builds(
    Turn,
    role=st.sampled_from(["user", "assistant", "tool"]),
    text=st.sampled_from(["", "so", "so be it", "no"]),
    calls=st.sampled_from([(), *((call,) for call in CALLS)]),
    token_ids=st.sampled_from([(), (1,), (1, 2), (2,)]),
    error=st.sampled_from(["", "ValueError: no"]),
)
REWARDS = st.none() | st.sampled_from([0.0, 0.5, 1.0])


def said(*texts: str) -> list[Turn]:
    """Return replies of a model."""
    return [Turn("assistant", text) for text in texts]


def sibling(
    number: int, turns: Sequence[Turn], reward: float | bool | str | None = None, state: str = "ok"
) -> Sibling:
    """Return trajectory ``number`` of group 1/7."""
    scores = () if reward is None else (Score("reward", reward),)
    path = f"1/7/{number}"
    summary = Summary(f"{number + 1:032x}", run="run-1", path=path, state=state, scores=scores)
    return Sibling(path, path, Conversation(summary, turns))


def group(*found: Sibling) -> Siblings:
    """Return the group of some siblings."""
    return Siblings("1/7", found, len(found), "here")


GROUPS = st.lists(
    st.tuples(st.lists(TURNS, max_size=4), REWARDS, st.sampled_from(["ok", "error", "running"])),
    min_size=1,
    max_size=7,
).map(lambda each: group(*(sibling(number, *one) for number, one in enumerate(each))))
