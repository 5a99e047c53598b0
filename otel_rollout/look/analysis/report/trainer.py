"""Compute what training made of each step's trajectories: their use in the loss, rewards, lag, mismatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from otel_rollout.look.analysis.run_choice import StepKey, by_step
from otel_rollout.table import filters
from otel_rollout.table.query import Engine
from otel_rollout.table.training import DIFFERS

_NAMED: Final = 3
"""Maximum trajectories of a step that are named: those whose two rewards differ most."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """What training made of a step's trajectories; a figure without scores is null.

    Attributes:
        known: trajectories for which it is known whether the loss uses them: by a score of the trainer, or
            because the trainer scored only others of the step.
        trained: trajectories that the loss uses.
        filtered: trajectories that the loss does not use, by reason.
        tokens: tokens that the loss counts.
        advantages: trajectories with a finite advantage.
        advantage_magnitude: mean magnitude of the advantage.
        rewards_compared: trajectories with both the reward that was trained on and a recorded reward.
        rewards_differing: trajectories in which these two differ, beyond a KL penalty.
        trained_rewards: trajectories with a reward that was trained on.
        reward_mean: mean of these rewards.
        reward_difference: the largest difference of the two rewards.
        differing: names of the trajectories with the largest differences.
        lags: trajectories with a known policy lag.
        lag_mean: their mean lag, in versions.
        lag_max: the greatest.
        lag_source: ``trainer``, or ``step`` if the lag is the step minus the version of the first tokens.
        mismatches: trajectories for which sampler and trainer were compared.
        mismatch_mean: mean difference of the sampler's and the trainer's log probabilities, in nats.
        mismatch_max: the largest difference of a token.
        mismatch_trajectory: name of the trajectory with this token.
        mismatch_turn: the model turn of the token, from 1.
        importance_ratios: trajectories with a weight by which the trainer corrects for the sampler's policy.
        importance_ratio: their mean weight.
        not_finite: trajectories with a score of the trainer that is NaN, infinite, or of 1e150 and more.
    """

    known: int
    trained: int
    filtered: Mapping[str, int]
    tokens: int | None
    advantages: int
    advantage_magnitude: float | None
    rewards_compared: int
    rewards_differing: int
    trained_rewards: int
    reward_mean: float | None
    reward_difference: float | None
    differing: tuple[str, ...]
    lags: int
    lag_mean: float | None
    lag_max: float | None
    lag_source: Literal["trainer", "step"] | None
    mismatches: int
    mismatch_mean: float | None
    mismatch_max: float | None
    mismatch_trajectory: str | None
    mismatch_turn: int | None
    importance_ratios: int
    importance_ratio: float | None
    not_finite: int


def trainers_of(engine: Engine, rows: str) -> dict[StepKey, Trainer]:
    """Return the figures of each step that a trainer has scored.

    Args:
        engine: queries the table.
        rows: SQL source of rows from :func:`otel_rollout.look.analysis.run_choice.rows_of`, all or some.
    """

    def asked(sql: str) -> list[dict[str, Any]]:
        return engine.dicts(sql.replace("{rows}", rows))

    if not asked("SELECT path FROM {rows} WHERE has_outcome LIMIT 1"):
        return {}
    figures = asked(_FIGURES)
    filtered, differing = map(by_step, map(asked, (_FILTERED, _DIFFERING)))
    return {
        (key := filters.step_out_of(figure)): Trainer(
            filtered={row["reason"]: row["number"] for row in filtered[key]},
            differing=tuple(row["path"] for row in differing[key]),
            **figure,
        )
        for figure in figures
    }


_FIGURES: Final = f"""
SELECT
  validate, step, step_text, count(coalesce(reason, CASE WHEN trained THEN '' END)) AS known,
  count(*) FILTER (WHERE trained) AS trained,
  TRY_CAST(sum(CAST(trained_tokens AS DOUBLE)) AS BIGINT) AS tokens, count(advantage) AS advantages,
  avg(abs(advantage)) AS advantage_magnitude, count(reward_difference) AS rewards_compared,
  count(*) FILTER (WHERE {DIFFERS}) AS rewards_differing,
  count(trained_reward) AS trained_rewards, avg(trained_reward) AS reward_mean,
  max(abs(reward_difference)) AS reward_difference,
  count(trainer_lag) AS lags, avg(trainer_lag) AS lag_mean, max(trainer_lag) AS lag_max,
  max(lag_source) AS lag_source, count(mismatch_mean) AS mismatches, avg(mismatch_mean) AS mismatch_mean,
  max(mismatch) AS mismatch_max,
  first_value(CASE WHEN mismatch IS NOT NULL THEN path END ORDER BY mismatch DESC NULLS LAST, path)
    AS mismatch_trajectory,
  first_value(mismatch_turn ORDER BY mismatch DESC NULLS LAST, path) AS mismatch_turn,
  count(importance_ratio) AS importance_ratios, avg(importance_ratio) AS importance_ratio,
  count(not_finite) AS not_finite
FROM {{rows}}
GROUP BY validate, step, step_text
HAVING bool_or(has_outcome)
"""  # noqa: S608
_FILTERED: Final = """
SELECT validate, step, step_text, reason, count(*) AS number
FROM {rows}
WHERE reason IS NOT NULL
GROUP BY validate, step, step_text, reason
ORDER BY number DESC, reason
"""
_DIFFERING: Final = f"""
SELECT validate, step, step_text, path
FROM (
  SELECT
    validate, step, step_text, path,
    row_number() OVER (
      PARTITION BY validate, step, step_text ORDER BY abs(reward_difference) DESC, path
    ) AS place
  FROM {{rows}}
  WHERE {DIFFERS}
) AS ordered
WHERE place <= {_NAMED}
ORDER BY place
"""  # noqa: S608
