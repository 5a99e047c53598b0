"""An agent's request keeps the fields that ask the model, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.integrations.model_request_fields import FIELDS, kept

STEERING = {
    "metadata",
    "litellm_metadata",
    "no-log",
    "api_base",
    "api_key",
    "base_url",
    "extra_headers",
    "headers",
}
STEERING |= {
    "extra_body",
    "fallbacks",
    "retry_policy",
    "num_retries",
    "mock_response",
    "cache",
    "user_config",
}
NAMES = st.one_of(st.sampled_from(sorted(FIELDS | STEERING)), st.text())


@given(st.dictionaries(NAMES, st.integers()))
def test_request_keeps_the_values_of_known_fields_and_nothing_else(body: dict[str, Any]) -> None:
    """What remains is the part of the request whose names are in the list."""
    remaining = kept(body)
    assert remaining.items() <= body.items()
    assert body.keys() - remaining.keys() == body.keys() - FIELDS


@pytest.mark.parametrize("field", sorted(STEERING))
def test_field_that_steers_a_proxy_is_removed(field: str) -> None:
    """Credentials, addresses, retries, headers and metadata do not pass."""
    assert kept({"model": "m", field: "x"}) == {"model": "m"}
