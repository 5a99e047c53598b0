"""The comparison of the sampler's and the trainer's log probabilities, against plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base.training_scores import LOGPROB_DIFF_LIMIT
from otel_rollout.integrations.kit import token_sums
from otel_rollout.integrations.kit.logprob_mismatch import logprob_mismatch
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes

_MEAN, _MAX, _TOKEN, _TURN, _SHARE = COLUMNS = [
    f"logprob_diff_{name}" for name in ("mean", "max", "token", "turn", "share")
]
_LOGPROBS = st.floats(-30, 0, width=32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], list[list[int]]]:
    """Return the sampler's and the trainer's log probabilities and the mask of a batch."""
    rows, tokens = draw(st.integers(1, 5)), draw(st.integers(1, 12))

    def table(values: st.SearchStrategy[Any]) -> Any:
        row = st.lists(values, min_size=tokens, max_size=tokens)
        return draw(st.lists(row, min_size=rows, max_size=rows))

    return table(_LOGPROBS), table(_LOGPROBS), table(st.integers(0, 1))


def _expected(sampler: list[float], trainer: list[float], mask: list[int]) -> tuple[Any, ...]:
    """Compute the five columns of one row in plain Python."""
    difference = [abs(np.float32(a) - np.float32(b)) for a, b in zip(sampler, trainer, strict=True)]
    inside = [i for i, counts in enumerate(mask) if counts]
    if not inside:
        return (None,) * len(COLUMNS)
    token = max(inside, key=difference.__getitem__)
    starts = [i for i in inside if i == 0 or not mask[i - 1]]
    mean = sum(float(difference[i]) for i in inside) / len(inside)
    share = sum(difference[i] > np.float32(LOGPROB_DIFF_LIMIT) for i in inside) / len(inside)
    turn = sum(start <= token for start in starts)
    return pytest.approx(mean, rel=1e-5, abs=1e-6), difference[token], token, turn, pytest.approx(share)


@given(batches())
def test_columns_equal_those_computed_token_by_token(batch: Any) -> None:
    """Mean, largest difference, its token and turn, and the share over the limit."""
    columns = logprob_mismatch(*map(torch.tensor, batch))
    assert list(columns) == COLUMNS
    assert list(zip(*columns.values(), strict=True)) == [_expected(*row) for row in zip(*batch, strict=True)]


@given(batches())
def test_tensors_are_not_changed(batch: Any) -> None:
    """Also if they require gradients, and have no graph afterwards."""
    sampler, trainer, mask = map(torch.tensor, batch)
    copies = [tensor.clone() for tensor in (sampler, trainer, mask)]
    trainer.requires_grad_()
    generator = torch.get_rng_state()
    logprob_mismatch(sampler, trainer, mask)
    assert all(torch.equal(a, b) for a, b in zip((sampler, trainer, mask), copies, strict=True))
    assert trainer.grad_fn is None
    assert torch.equal(torch.get_rng_state(), generator)


def test_blocks_of_rows_give_the_result_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches are compared in blocks that fit the processor's cache."""
    sampler, trainer = torch.rand(2, 37, 50)
    mask = torch.rand(37, 50) > 0.3
    whole = logprob_mismatch(sampler, trainer, mask)
    monkeypatch.setattr(token_sums, "_BLOCK_BYTES", 5 * 50 * 4)
    assert logprob_mismatch(sampler, trainer, mask) == whole


def test_constant_difference_in_one_turn_is_found() -> None:
    """The turns are those of the mask: a tool's tokens divide them."""
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 0, 1, 0]])
    sampler = torch.full(mask.shape, -0.5)
    trainer = sampler.clone()
    trainer[0, 3:6] -= 0.3
    columns = logprob_mismatch(sampler, trainer, mask)
    assert (columns[_TOKEN], columns[_TURN]) == ([3], [2])
    assert columns[_SHARE] == [0.5]
    assert columns[_MAX] == [pytest.approx(0.3)]
    assert columns[_MEAN] == [pytest.approx(0.15)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_outside_of_the_mask_do_not_count(value: float) -> None:
    """Padding may hold anything, and both may be infinite there."""
    sampler, trainer = torch.tensor([[-1.0, value]]), torch.tensor([[-1.0, value]])
    columns = logprob_mismatch(sampler, trainer, torch.tensor([[1, 0]]))
    assert list(columns.values()) == [[0.0], [0.0], [0], [1], [0.0]]


def test_log_probability_that_is_no_number_is_shown() -> None:
    """Its token is the largest difference's, and counts for the share."""
    sampler, trainer = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, math.nan]])
    columns = logprob_mismatch(sampler, trainer, torch.tensor([[1, 1]]))
    assert math.isnan(columns[_MEAN][0])
    assert math.isnan(columns[_MAX][0])
    assert (columns[_TOKEN], columns[_TURN], columns[_SHARE]) == ([1], [1], [0.5])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_empty_batch_has_no_values(shape: tuple[int, int]) -> None:
    """A row without tokens has None, a batch without rows has no values."""
    empty = torch.zeros(shape)
    assert list(logprob_mismatch(empty, empty, empty).values()) == [[None] * shape[0]] * len(COLUMNS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_of_numbers_are_compared(dtype: Any) -> None:
    """Trainers may keep log probabilities in half precision."""
    sampler, trainer = torch.tensor([[-1.0, -2.0]]).to(dtype), torch.tensor([[-1.0, -2.5]])
    assert logprob_mismatch(sampler, trainer, torch.tensor([[True, True]]))[_MAX] == [0.5]


def test_columns_are_outcomes_of_training() -> None:
    """They are arguments of ``TrainingOutcomes``."""
    row = torch.tensor([[-1.0]])
    assert TrainingOutcomes(**logprob_mismatch(row, row, row < 0)).logprob_diff_turn == [1]
