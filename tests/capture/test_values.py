"""Any value becomes JSON: faithful where it can be, bounded and harmless always."""

import dataclasses
import enum
import json
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.capture.values import to_json

LIMIT = 1 << 20


def shown(value, limit=LIMIT):
    return json.loads(to_json(value, limit))


@dataclasses.dataclass
class Point:
    x: int
    y: object = None


class Colour(enum.Enum):
    RED = "red"


class RaisingRepr:
    def __repr__(self):
        raise RuntimeError("no")


Pair = namedtuple("Pair", "a b")
cycle: list = [1]
cycle.append(cycle)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(1, Point(2)), {"x": 1, "y": {"x": 2, "y": None}}),
        (Colour.RED, "red"),
        (Pair(1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (b"abc", "<3 bytes>"),
        (OrderedDict(a=1), {"a": 1}),
        (np.arange(3), [0, 1, 2]),
        (np.float32(1.5), 1.5),
        ({1: "a", (2, 3): "b"}, {"1": "a", "(2, 3)": "b"}),
        (float("nan"), None),
        (float("inf"), None),
        (1 << 80, str(1 << 80)),
        ("\ud800x", "\\ud800x"),
        (int, "int"),
        (RaisingRepr(), "<a RaisingRepr whose repr raises RuntimeError>"),
        (cycle, [1, "… (a cycle)"]),
    ],
)
def test_known_kinds_show_what_they_hold(value, expected):
    """Dataclasses, enums, arrays, sets and the rest appear as what they hold; oddities are named."""
    assert shown(value) == expected


def test_tensors_show_shape_and_type_and_small_ones_their_numbers():
    """A small tensor appears as numbers, a large one as its shape and dtype."""
    import torch

    assert shown(torch.tensor([1, 2])) == [1, 2]
    assert shown(torch.zeros(100, 100)) == "<tensor (100, 100) torch.float32>"


def test_large_arrays_show_shape_and_type():
    """An image handed to a tool costs no second of training: its shape and dtype say what it was."""
    assert shown(np.zeros((1080, 1920, 3), np.uint8)) == "<array (1080, 1920, 3) uint8>"


def test_a_proxy_is_not_called():
    """An object that has every attribute, such as a handle to something remote, is only described."""

    class Proxy:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

        def __repr__(self):
            return "<proxy>"

    assert shown(Proxy()) == "<proxy>"


def test_one_bad_object_does_not_hide_the_rest():
    """What surrounds an object that cannot be looked into is shown."""

    class Model:
        def model_dump(self):
            raise RuntimeError("broken")

        def __repr__(self):
            return "<model>"

    assert shown({"prompt": "hello", "model": Model()}) == {"prompt": "hello", "model": "<model>"}


def test_pydantic_models_show_their_fields():
    """A pydantic model appears as its fields."""
    import pydantic

    class Model(pydantic.BaseModel):
        a: int = 1

    assert shown({"m": Model()}) == {"m": {"a": 1}}


@pytest.mark.parametrize(
    "value", ["x" * 10_000, list(range(10_000)), {str(i): i for i in range(10_000)}, ["y" * 300] * 100]
)
def test_large_values_are_cut_and_say_so(value):
    """Beyond the limit valid JSON remains, with the amount left out in words."""
    encoded = to_json(value, 1000)
    assert len(encoded) < 3000
    assert " more " in json.dumps(json.loads(encoded), ensure_ascii=False)


def test_deep_nesting_ends():
    """Nesting beyond what JSON encoders bear is cut, not followed."""
    value: object = 1
    for _ in range(5000):
        value = [value]
    assert b"nested too deeply" in to_json(value, LIMIT)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
    | st.builds(object) | st.complex_numbers() | st.dates() | st.builds(RaisingRepr),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text() | st.none(), inner)
    | st.tuples(inner, inner) | st.frozensets(st.integers()) | st.builds(Point, st.integers(), inner),
    max_leaves=20,
)  # fmt: skip


@given(value=anything, limit=st.integers(64, 5000))
def test_anything_becomes_valid_bounded_json(value, limit):
    """Whatever the value, the result is JSON of about the limit's size at most, and nothing is raised."""
    encoded = to_json(value, limit)
    json.loads(encoded)
    assert len(encoded) < 20 * limit + 2000


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(value=plain)
def test_plain_values_round_trip(value):
    """What JSON can hold comes back equal."""
    assert shown(value) == value
