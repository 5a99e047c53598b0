"""The reduction of a trainer's values per token, against plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.integrations.kit import token_sums
from otel_rollout.integrations.kit.token_sums import counts, means, sums


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]]]:
    """Return values and a mask of equal shape; values outside of the mask may be no numbers."""
    rows, tokens = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    number = st.floats(-100, 100, width=32)
    mask = [[draw(st.integers(0, 1)) for _ in range(tokens)] for _ in range(rows)]
    wild = number | st.sampled_from([math.nan, math.inf, -math.inf])
    return [[draw(number if inside else wild) for inside in row] for row in mask], mask


@given(batches())
def test_means_are_those_of_the_tokens_in_the_mask(batch: Any) -> None:
    """What lies outside does not count, and a row without tokens has no mean."""
    values, mask = map(torch.tensor, batch)
    inside = [[v for v, m in zip(*row, strict=True) if m] for row in zip(*batch, strict=True)]
    expected = [pytest.approx(sum(row) / len(row), rel=1e-4, abs=1e-4) if row else None for row in inside]
    assert means(values, mask) == expected
    assert counts(mask) == [len(row) for row in inside]
    assert means(values, mask.bool()) == expected


def test_value_in_the_mask_that_is_no_number_is_shown() -> None:
    """An advantage of NaN is a finding."""
    (mean,) = means(torch.tensor([[1.0, math.nan]]), torch.tensor([[1, 1]]))
    assert mean is not None
    assert math.isnan(mean)


def test_sums_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row's sum, and the sum of its differences to another tensor."""
    values, others = torch.rand(2, 37, 50)
    monkeypatch.setattr(token_sums, "_BLOCK_BYTES", 5 * 50 * 4)
    assert sums(values) == pytest.approx(values.double().sum(1).tolist(), rel=1e-5)
    assert sums(values, others) == pytest.approx((values - others).double().sum(1).tolist(), abs=1e-4)
