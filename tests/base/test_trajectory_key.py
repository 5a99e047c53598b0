"""A key of a trajectory is made and read with the same secret alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base import trajectory_key

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
traceparents = st.builds(
    "00-{:032x}-{:016x}-{:02x}".format,
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.integers(0, 255),
)


@given(traceparents, st.text(min_size=1))
def test_a_key_gives_its_traceparent_back(traceparent: str, secret: str) -> None:
    """The holder of the secret reads from a key what was signed."""
    key = trajectory_key.signed(traceparent, secret)
    assert key.startswith("sk-")
    assert trajectory_key.traceparent_of(key, secret) == traceparent


@given(traceparents, st.text(min_size=1), st.text(min_size=1))
def test_another_secret_reads_nothing(traceparent: str, secret: str, other: str) -> None:
    """A key that was signed with another secret is none."""
    key = trajectory_key.signed(traceparent, secret)
    assert (trajectory_key.traceparent_of(key, other) is not None) == (secret == other)


@given(st.integers(0, 90), st.sampled_from("0123456789abcdef"))
def test_a_changed_key_is_none(position: int, digit: str) -> None:
    """An agent that changes a digit, such as a trace flag, has no key."""
    key = trajectory_key.signed(TRACEPARENT, "secret")
    changed = key[:position] + digit + key[position + 1 :]
    if changed != key:
        assert trajectory_key.traceparent_of(changed, "secret") is None


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    """Text that is no key has no traceparent."""
    assert trajectory_key.traceparent_of(text, "secret") is None


@pytest.mark.parametrize(
    "traceparent",
    [
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        TRACEPARENT.upper(),
        TRACEPARENT + "\n",
    ],
)
def test_an_invalid_traceparent_is_none(traceparent: str) -> None:
    """A signature does not make a traceparent valid that W3C calls invalid."""
    assert trajectory_key.traceparent_of(trajectory_key.signed(traceparent, "secret"), "secret") is None


def test_without_a_secret_no_key_is_valid() -> None:
    """A proxy without a master key admits nobody."""
    assert trajectory_key.traceparent_of(trajectory_key.signed(TRACEPARENT, ""), "") is None
