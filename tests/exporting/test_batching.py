"""Requests have bounded size for entries of any size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.exporting.batching import batches, chunks, halved

entries = st.lists(st.binary(max_size=12), max_size=30)


@given(entries=entries, limit=st.integers(1, 40), number=st.none() | st.integers(1, 5))
def test_batches_keep_order_and_limits(entries, limit, number):
    """Only a single entry exceeds the limit.

    No batch could have taken the next entry.
    """
    found = list(batches(entries, len, limit, number))
    assert [entry for batch in found for entry in batch] == entries
    for batch, following in zip(found, [*found, None][1:], strict=True):
        size = sum(map(len, batch))
        assert size <= limit or len(batch) == 1
        assert number is None or len(batch) <= number
        if following is not None:
            assert size + len(following[0]) > limit or len(batch) == number


@given(entries=entries, limit=st.integers(1, 40))
def test_halved_requests_keep_order_and_limit(entries, limit):
    """Requests joined are the entries; only a request of one entry exceeds the limit."""
    found = list(halved(entries, tuple, lambda request: sum(map(len, request)), limit))
    assert [entry for request in found for entry in request] == entries
    assert all(len(request) <= 1 or sum(map(len, request)) <= limit for request in found)


@given(entries=entries, size=st.integers(1, 7))
def test_chunks_are_full_but_for_the_last(entries, size):
    """Chunks of an iterator have the size that was asked for."""
    found = list(chunks(iter(entries), size))
    assert [entry for chunk in found for entry in chunk] == entries
    assert {len(chunk) for chunk in found[:-1]} <= {size}
    assert all(0 < len(chunk) <= size for chunk in found)
