"""Describe what training made of a trajectory, and in which turn sampler and trainer disagree most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rollout.base import training_scores as names
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.formatting import counted, percent, score_value
from otel_rollout.look.conversation.summary import Score

SCORES: Final = frozenset((*names.NUMBERS, names.TRAINING_TOKENS))
"""Names of the trainer's scores, which are shown apart from other scores."""
_BESIDE: Final = 4
"""Number of tokens before, and after, the token with the largest difference whose values are shown."""
_MAX_NAMES: Final = 8
"""Maximum kinds of values per token that are shown."""


@dataclass(frozen=True)
class TokenWindow:
    """Values of the tokens around the token with the largest difference between sampler and trainer.

    Attributes:
        tokens: indices of the tokens in the response.
        peak: the index of the token with the largest difference.
        rows: name and values of each kind, as text.
    """

    tokens: tuple[int, ...]
    peak: int
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Training:
    """What training made of a trajectory.

    Attributes:
        facts: name and value of each fact, in words.
        mismatch: the largest difference of a token, and its place, in words; empty if unknown.
        turn: number, from 1, of the shown turn with this token; None if unknown.
        window: the values of the tokens around this token; None if no values per token were recorded.
    """

    facts: tuple[tuple[str, str], ...]
    mismatch: str
    turn: int | None
    window: TokenWindow | None


def training_of(conversation: Conversation) -> Training | None:
    """Return what training made of a trajectory; None without scores of the trainer."""
    scores = {score.name: score for score in conversation.summary.scores}
    if SCORES.isdisjoint(scores) and not conversation.is_passed_over:
        return None
    numbers = {
        name: float(score.value)
        for name, score in scores.items()
        if isinstance(score.value, (int, float)) and math.isfinite(score.value)
    }
    turn = _shown_turn(conversation, numbers.get(names.LOGPROB_DIFF_TURN))
    window = _window(conversation.token_values, numbers.get(names.LOGPROB_DIFF_TOKEN))
    facts = tuple(_facts(scores, numbers))
    if conversation.is_passed_over:
        facts = (("trained", "not named by the trainer"), *facts)
    return Training(facts, _place(numbers), turn, window)


def others(conversation: Conversation) -> list[Score]:
    """Return the scores that are not the trainer's."""
    return [score for score in conversation.summary.scores if score.name not in SCORES]


def _facts(scores: Mapping[str, Score], numbers: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    if (trained := scores.get(names.TRAINED)) is not None:
        yield "trained", _trained(trained)
    for name, score in scores.items():
        if name in (names.ADVANTAGE, names.RETURN):
            yield name, score_value(score.value)
    if names.TRAINED_REWARD in scores:
        yield "reward", _reward(scores, numbers)
    if names.TRAINED_TOKENS in numbers:
        yield "in the loss", counted(int(numbers[names.TRAINED_TOKENS]), "token")
    if names.TRAINED_STEP in numbers:
        yield "learned in step", f"{numbers[names.TRAINED_STEP]:.0f}"
    if names.POLICY_LAG in numbers:
        yield (
            "policy lag",
            f"{numbers[names.POLICY_LAG]:g} version{'' if numbers[names.POLICY_LAG] == 1 else 's'}",
        )
    if names.LOGPROB_DIFF_MEAN in scores:
        yield "mismatch", _mismatch(scores, numbers)
    if names.IMPORTANCE_RATIO in scores:
        yield "importance ratio", score_value(scores[names.IMPORTANCE_RATIO].value)


def _trained(trained: Score) -> str:
    if trained.value == 1:
        return "yes"
    if trained.value == 0:
        return f"no: {trained.comment}" if trained.comment else "no, and no reason is given"
    return score_value(trained.value)


def _reward(scores: Mapping[str, Score], numbers: Mapping[str, float]) -> str:
    """Return the reward that was trained on, beside the recorded one."""
    words = f"trained on {score_value(scores[names.TRAINED_REWARD].value)}"
    if numbers.get(names.KL_PENALTY):
        words += f" after a KL penalty of {numbers[names.KL_PENALTY]:.6g}"
    recorded = scores.get("reward")
    return words if recorded is None else f"{words}; recorded {score_value(recorded.value)}"


def _mismatch(scores: Mapping[str, Score], numbers: Mapping[str, float]) -> str:
    mean = scores[names.LOGPROB_DIFF_MEAN].value
    words = f"mean {score_value(abs(mean) if isinstance(mean, float) else mean)} nats"
    share = numbers.get(names.LOGPROB_DIFF_SHARE)
    if share is not None and 0 <= share <= 1:
        words += f"; {percent(share)} of the tokens above {names.LOGPROB_DIFF_LIMIT:g}"
    return words


def _place(numbers: Mapping[str, float]) -> str:
    """Return the largest difference with its place."""
    if names.LOGPROB_DIFF_MAX not in numbers:
        return ""
    words = f"{abs(numbers[names.LOGPROB_DIFF_MAX]):.4g} nats"
    if names.LOGPROB_DIFF_TOKEN in numbers:
        words += f" at token {numbers[names.LOGPROB_DIFF_TOKEN]:.0f} of the response"
    if names.LOGPROB_DIFF_TURN in numbers:
        words += f", in model turn {numbers[names.LOGPROB_DIFF_TURN]:.0f}"
    return words


def _shown_turn(conversation: Conversation, model_turn: float | None) -> int | None:
    """Return the number of a model turn among all shown turns, from 1; None if there is no such turn.

    The trainer's response has the replies of the trajectory's own model calls that returned.
    """
    trained = {id(turn) for _, turn in conversation.said if turn.is_model_call and not turn.error}
    places = [place for place, turn in enumerate(conversation.turns, start=1) if id(turn) in trained]
    if model_turn is None or not 1 <= model_turn <= len(places):
        return None
    return places[int(model_turn) - 1]


def _window(values: Mapping[str, Sequence[float | None]], token: float | None) -> TokenWindow | None:
    longest = max(map(len, values.values()), default=0)
    if token is None or not 0 <= token < longest:
        return None
    peak = int(token)
    tokens = tuple(range(max(0, peak - _BESIDE), min(longest, peak + _BESIDE + 1)))
    rows = (
        (name, tuple(_text(numbers, token) for token in tokens))
        for name, numbers in list(values.items())[:_MAX_NAMES]
    )
    return TokenWindow(tokens, peak, tuple(rows))


def _text(numbers: Sequence[float | None], token: int) -> str:
    number = numbers[token] if token < len(numbers) else None
    return "" if number is None else f"{number:.4g}"
