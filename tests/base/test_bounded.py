"""BoundedDict."""

from __future__ import annotations

import pytest

from otel_rollout.base.bounded import BoundedDict


def test_oldest_entry_goes_when_there_are_too_many() -> None:
    """The entries that were set last stay."""
    numbers: BoundedDict[str, int] = BoundedDict(2)
    for value, key in enumerate("abc"):
        numbers[key] = value
    assert dict(numbers) == {"b": 1, "c": 2}
    assert "a" not in numbers
    assert numbers.get("a") is None


def test_setting_an_entry_again_makes_it_the_newest() -> None:
    """Reading an entry does not."""
    numbers: BoundedDict[str, int] = BoundedDict(2)
    numbers["a"], numbers["b"] = 1, 2
    numbers["a"] = 3
    assert numbers["b"] == 2
    numbers["c"] = 4
    assert dict(numbers) == {"a": 3, "c": 4}


def test_sum_of_sizes_is_bounded() -> None:
    """As many of the oldest entries go as make room.

    One that is too large for all of it is not kept.
    """
    texts: BoundedDict[str, str] = BoundedDict(10, len)
    texts["a"], texts["b"], texts["c"] = "xxxx", "xxxx", "xx"
    assert texts._total == 10
    texts["d"] = "xxxxx"
    assert list(texts) == ["c", "d"]
    assert texts._total == 7
    texts["e"] = "x" * 11
    assert (list(texts), texts._total) == ([], 0)


def test_removed_entries_make_room() -> None:
    """pop() and del take an entry's size off the sum."""
    texts: BoundedDict[str, str] = BoundedDict(10, len)
    texts["a"], texts["b"] = "xxxx", "xxxx"
    assert texts.pop("a") == "xxxx"
    del texts["b"]
    assert (len(texts), texts._total, texts.pop("a", None)) == (0, 0, None)
    with pytest.raises(KeyError):
        texts["a"]


def test_size_is_measured_when_an_entry_is_set() -> None:
    """A value that grows is measured again when it is set again."""
    lists: BoundedDict[str, list[int]] = BoundedDict(10, len)
    members = [1]
    lists["a"] = members
    members.extend([2, 3])
    assert lists._total == 1
    lists["a"] = members
    assert lists._total == 3
