"""Any value becomes JSON: faithful if possible, and always of bounded size."""

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import json
import pathlib
import random
import re
import threading
import tracemalloc
import types
import uuid
import warnings
from collections import deque, namedtuple
from collections.abc import Mapping

import attrs
import numpy as np
import orjson
import pydantic
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from benchmarks.counts import instructions
from otel_rollout.record.capture import encoding
from otel_rollout.record.capture.encoding import size, to_json
from otel_rollout.record.capture.encoding.in_parts import BoundedEncoder
from otel_rollout.record.capture.encoding.size import Work
from otel_rollout.record.recording.state import state

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


class RaisingMapping(Mapping):
    """Yields one entry and fails."""

    def __len__(self):
        return 10

    def __getitem__(self, key):
        if key == "a":
            return 1
        raise RuntimeError("gone")

    def __iter__(self):
        return iter("abc")


class Shown:
    def __repr__(self):
        return "<Shown>"


class Bare:
    pass


@attrs.define
class AttrsPoint:
    x: int


class Model(pydantic.BaseModel):
    a: int
    secret: str = pydantic.Field("", exclude=True)


Pair = namedtuple("Pair", "a b")
cycle: list = [1]
cycle.append(cycle)

KNOWN = {
    "nan": float("nan"),
    "inf": float("inf"),
    "np": np,
    "torch": torch,
    "json": json,
    "Image": Image,
    **{kind.__name__: kind for kind in (Point, Colour, RaisingRepr, RaisingMapping, Shown, Bare, AttrsPoint)},
    "Model": Model,
    "Pair": Pair,
    "cycle": cycle,
    "deque": deque,
    "partial": functools.partial,
    "MappingProxyType": types.MappingProxyType,
    "Path": pathlib.Path,
    "UUID": uuid.UUID,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "datetime": datetime.datetime,
    "date": datetime.date,
    "timedelta": datetime.timedelta,
}
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "recording.md"
VALUES = PAGE.read_text("utf-8").partition("\n## Values\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.*) \| `(.*)` \| `(.*)` \|$", VALUES, re.MULTILINE)


@pytest.fixture(autouse=True)
def nothing_large_before(monkeypatch):
    """Start each test as a process that has not encoded a large value yet."""
    monkeypatch.setattr(state, "values_to_measure", 0)


def test_values_page_has_its_table():
    """As many rows of the section "Values" are tested as it has."""
    assert len(ROWS) == VALUES.count("\n| ") - 1 > 40


@pytest.mark.parametrize(("example", "recorded"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_value_is_recorded_as_documented(example, recorded):
    """Each row of docs/recording.md holds.

    It holds for the value itself, and beside a key that orjson refuses.
    """
    expected = json.loads(recorded)
    assert shown(eval(example, dict(KNOWN))) == expected
    assert shown({0: eval(example, dict(KNOWN))}) == {"0": expected}


def test_large_array_is_recorded_by_shape_and_type():
    """The numbers of an image are not recorded."""
    assert shown(np.zeros((1080, 1920, 3), np.uint8)) == "<array (1080, 1920, 3) uint8>"


def test_object_with_every_attribute_is_only_described():
    """A handle to a remote object is not called."""

    class Proxy:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

        def __repr__(self):
            return "<proxy>"

    assert shown(Proxy()) == "<proxy>"


def test_failing_object_does_not_hide_its_neighbours():
    """The values around an object that raises are recorded."""

    class Model:
        def model_dump(self):
            raise RuntimeError("broken")

        def __repr__(self):
            return "<model>"

    assert shown({"prompt": "hello", "model": Model()}) == {"prompt": "hello", "model": "<model>"}


class Lying:
    """Claims to be a dict, and refuses every request."""

    __class__ = property(lambda self: 1 / 0)

    def __getattribute__(self, name):
        raise SystemExit(name)


class HostileText(str):
    def __len__(self):
        raise RuntimeError

    def __str__(self):
        raise RuntimeError

    def __getitem__(self, index):
        raise RuntimeError

    def encode(self, *_):
        raise RuntimeError


class HostileInteger(int):
    def __index__(self):
        raise RuntimeError

    def __lt__(self, other):
        raise RuntimeError

    def __repr__(self):
        raise SystemExit


class HostileList(list):
    def __len__(self):
        return 1 << 40

    def __iter__(self):
        raise MemoryError


class HostileDict(dict):
    def __len__(self):
        return -1

    def items(self):
        raise RecursionError

    encoding = keys = __iter__ = items


class Endless(Mapping):
    def __len__(self):
        return 3

    def __getitem__(self, key):
        return key

    def __iter__(self):
        number = 0
        while True:
            yield str(number)
            number += 1


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8)


HOSTILE = [
    Lying,
    lambda: HostileText("text"),
    lambda: HostileInteger(1 << 70),
    lambda: HostileList([1, 2]),
    lambda: HostileDict(a=1),
    RaisingMapping,
    RaisingRepr,
    threading.Lock,
    lambda: io.StringIO("text"),
    lambda: np.longdouble(1.5),
    lambda: np.zeros((1 << 40, 0)),
    lambda: np.array(cycle, dtype=object),
    lambda: np.ma.masked_array([1, 2], [True, False]),
    lambda: torch.zeros(2, dtype=torch.bfloat16),
    quantised,
    lambda: torch.zeros(3, device="meta"),
    lambda: ray.ObjectRef.nil(),
    lambda: datetime.time(1, tzinfo=datetime.UTC),
    lambda: decimal.Decimal("sNaN"),
    lambda: (number for number in [1]),
]


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize("limit", [1, 10, LIMIT])
def test_hostile_value_neither_raises_nor_hides_its_neighbours(make, limit):
    """Objects that lie, raise or refuse are described.

    The values beside them are recorded.
    """
    json.loads(to_json(make(), limit))
    json.loads(to_json({"value": make()}, limit))
    if limit == LIMIT:
        assert shown([make(), {0: make()}, "beside"])[2] == "beside"


def test_endless_mapping_is_cut_at_the_limit():
    """The length that the mapping claims does not matter."""
    assert len(to_json(Endless(), 5000)) < 5200


def test_encoding_consumes_no_iterator_and_no_random_number():
    """Generators, iterators and files keep their position."""
    generator, iterator, file = (n for n in [1, 2]), iter([1, 2]), io.StringIO("text")
    before = random.getstate()
    shown([generator, iterator, file, map(str, [1]), zip([1], [2], strict=True)])
    assert (next(generator), next(iterator), file.read()) == (1, 1, "text")
    assert random.getstate() == before


def huge(shape):
    text = "x" * 50_000_000
    return {
        "string": lambda: text,
        "argument": lambda: {"prompt": text, "temperature": 0.7},
        "deep": lambda: {"a": {"b": {"c": text}}, "d": 1},
        "last message": lambda: [{"role": "user", "content": "x"}] * 20 + [{"role": "user", "content": text}],
        "integers": lambda: list(range(5_000_000)),
        "batch": lambda: [[1] * 1000] * 20_000,
        "strings": lambda: ["x" * 100_000] * 1000,
        "set": lambda: set(range(1_000_000)),
        "array": lambda: np.zeros(20_000_000),
        "control characters": lambda: "\0" * 20_000_000,
    }[shape]()


SHAPES = [
    "string",
    "argument",
    "deep",
    "last message",
    "integers",
    "batch",
    "strings",
    "set",
    "array",
    "control characters",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_huge_value_takes_memory_of_a_few_limits(shape):
    """Tens of megabytes are cut before they are encoded."""
    value = huge(shape)
    tracemalloc.start()
    try:
        encoded = to_json(value, 100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(encoded) < 102_000
    assert peak < 3_000_000
    json.loads(encoded)


def test_digits_of_a_huge_integer_are_cut_at_the_limit():
    """An integer of a thousand digits takes no more than the limit."""
    assert shown((10**1000, None), 20)[0].endswith("more characters)")


def test_dict_that_doubles_on_each_level_is_bounded():
    """Thirty levels, each with the one below it twice, are not encoded in full."""
    value = {}
    for _ in range(30):
        value = {"left": value, "right": value}
    assert len(to_json(value, 10_000)) < 12_000


@pytest.mark.parametrize("width", range(1, 7))
def test_size_estimate_of_shared_parts_does_not_multiply(width, monkeypatch):
    """With several parts on each level, the level below is not visited once for each."""
    looks = 0
    look = size.seems_larger

    def counted(*arguments):
        nonlocal looks
        looks += 1
        return look(*arguments)

    monkeypatch.setattr(encoding, "seems_larger", counted)
    monkeypatch.setattr(size, "seems_larger", counted)
    value = {}
    for _ in range(8):
        value = dict.fromkeys("abcdef"[:width], value)
    to_json(value, 10_000)
    assert looks < 1 << 12


def test_values_after_an_underestimated_one_are_measured():
    """A value that escapes the estimate is encoded in full once, not with every call."""
    value = {str(number): "x" * 2_000_000 for number in range(10)}
    first = to_json(value, 100_000)
    tracemalloc.start()
    try:
        assert to_json(value, 100_000) == first
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_small_value_after_a_large_one_is_recorded():
    """A huge prompt leaves room for the small arguments after it."""
    recorded = shown({"prompt": "x" * 10_000, "temperature": 0.7}, 1000)
    assert recorded["temperature"] == 0.7
    assert recorded["prompt"].endswith("more characters)")


def test_note_on_an_omission_has_the_exact_count():
    """The missing characters, items and entries are counted."""
    text = shown("é" * 1000, 100)
    assert text.count("é") + int(re.search(r"\((\d+) more characters", text)[1]) == 1000
    items = shown(list(range(1000)), 100)
    assert len(items) - 1 + int(re.search(r"\((\d+) more items", items[-1])[1]) == 1000
    entries = shown({str(n): n for n in range(1000)}, 100)
    assert len(entries) - 1 + int(re.search(r"\((\d+) more entries", entries["…"])[1]) == 1000


@pytest.mark.parametrize(
    "value", ["x" * 10_000, list(range(10_000)), {str(i): i for i in range(10_000)}, ["y" * 300] * 100]
)
def test_value_beyond_the_limit_is_cut_with_a_note(value):
    """The result is valid JSON with the omitted amount in words."""
    encoded = to_json(value, 1000)
    assert len(encoded) < 3000
    assert " more " in json.dumps(json.loads(encoded), ensure_ascii=False)


def test_deep_nesting_is_cut_with_a_note():
    """Five thousand levels are not followed."""
    value: object = 1
    for _ in range(5000):
        value = [value]
    assert b"nested too deeply" in to_json(value, LIMIT)


ODD = {
    "tuple keys": lambda: {(n, n + 1): n for n in range(40_000)},
    "integer keys": lambda: {n: n for n in range(70_000)},
    "one integer key": lambda: {**{f"k{n}": n for n in range(70_000)}, 1: 2},
    "dicts by tuples": lambda: [{(n, 1): n} for n in range(50_000)],
    "dicts by integers": lambda: [{n: n} for n in range(60_000)],
    "dicts and one integer key": lambda: {**{f"{n}": {"a": {"b": n}} for n in range(43_000)}, 1: 1},
    "set": lambda: {f"s{n}" for n in range(100_000)},
    "sets": lambda: [{n, n + 1} for n in range(60_000)],
    "objects": lambda: [Bare() for _ in range(40_000)],
    "objects with a repr": lambda: [Shown() for _ in range(90_000)],
    "dataclasses of objects": lambda: [Point(n, Bare()) for n in range(25_000)],
    "numpy scalars": lambda: [np.float32(n) for n in range(120_000)],
    "tensors": lambda: [torch.ones(1)] * 100_000,
    "decimals": lambda: [decimal.Decimal(n) for n in range(100_000)],
    "bytes": lambda: [b"abc"] * 60_000,
    "lone surrogates": lambda: ["abc\ud800"] * 100_000,
    "huge integers": lambda: [1 << 70] * 40_000,
    "lists and one integer key": lambda: [[[[n]] for n in range(80_000)], {1: 1}],
}


@pytest.mark.parametrize("kind", ODD)
def test_values_that_orjson_refuses_take_bounded_time(kind):
    """A mebibyte of such values takes a few milliseconds, and the omission is counted."""
    value, encoded = ODD[kind](), []
    assert instructions(lambda: encoded.append(to_json(value, LIMIT))) < 800_000
    recorded = json.loads(encoded[0])
    while isinstance(recorded, list) and len(recorded) == 2:
        recorded, value = recorded[0], value[0]
    members = list(recorded.values()) if isinstance(recorded, dict) else recorded
    said = re.search(r"\((\d+) more (items|entries)\)", members[-1])
    assert 250 < len(members) - 1 == len(value) - int(said[1])


def nested(levels):
    value = [1]
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [[nested(800)] * 15, [[nested(300)] * 12, [nested(300)] * 12]])
def test_deep_value_is_not_measured_on_every_level(value):
    """A deep value is not measured on every level, even after all visits are used up."""
    assert instructions(lambda: to_json([[[]] * 9000, *value], LIMIT)) < 800_000


MESSAGES = [{"role": "user", "content": "How many are there? " * 10} for _ in range(3000)]


@pytest.mark.parametrize(
    "value",
    [
        [*MESSAGES, {1: 2}],
        [*MESSAGES, {1: 2}, *MESSAGES[:1000]],
        {"a": {"b": {"messages": MESSAGES, (1, 2): 3}}},
        {"ids": list(range(100_000, 220_000)), 1: 2},
        {"ids": list(range(100_000, 220_000)), "last": Bare()},
        [np.arange(60_000)] * 2,
        [np.arange(200)] * 1000,
        [[np.float32(n) for n in range(2000)] for _ in range(8)],
        [np.float32(n) for n in range(20_000)],
        [dict.fromkeys(range(20), -1.0)] * 700,
        [Point(n, Shown()) for n in range(1000)],
        {(n, 1): n for n in range(2000)},
        ["x" * 900_000, {1: 2}],
    ],
)
def test_values_of_usual_rollouts_are_recorded_whole(value):
    """The bound on time cuts no messages, token ids, arrays or a thousand objects."""
    assert b" more " not in to_json(value, LIMIT)


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
    | st.builds(object) | st.complex_numbers() | st.dates() | st.datetimes() | st.uuids() | st.decimals()
    | st.fractions() | st.timedeltas() | st.sampled_from(Colour)
    | st.integers(62, 20_000).map(lambda bits: 1 << bits)
    | st.sampled_from([*HOSTILE[1:], Bare, Shown, Endless]).map(lambda make: make())
    | st.sampled_from([int, len, json, cycle, float("nan"), np.arange(9), torch.ones(2, 2)])
)  # fmt: skip
keys = (
    st.integers() | st.text() | st.none() | st.booleans() | st.tuples(st.integers(), st.text()) | st.dates()
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner)
    | st.frozensets(st.integers() | st.text()) | st.builds(Point, st.integers(), inner)
    | st.builds(Pair, inner, inner) | st.lists(inner).map(HostileList) | st.lists(inner).map(deque)
    | st.dictionaries(st.text(), inner).map(HostileDict) | st.builds(AttrsPoint, inner)
    | st.dictionaries(keys, inner).map(types.MappingProxyType) | st.builds(Model.model_construct, a=inner)
    | st.lists(inner).map(lambda args: ValueError(*args)),
    max_leaves=20,
)  # fmt: skip


@given(value=anything, limit=st.integers(1, 5000))
def test_any_value_becomes_valid_bounded_json(value, limit):
    """The result is equal each time, and at most about as large as the limit."""
    encoded = to_json(value, limit)
    json.loads(encoded)
    orjson.loads(encoded)
    assert len(encoded) < limit + 1500
    assert to_json(value, limit) == encoded


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(value=plain)
def test_plain_value_round_trips(value):
    """A value of JSON's types comes back equal."""
    assert shown(value) == value


@given(value=plain)
def test_value_encoded_in_parts_equals_the_value(value):
    """Both ways of encoding give the same result."""
    assert json.loads(BoundedEncoder(LIMIT, Work()).encode(value, 100)) == value
