"""The generated binder agrees with Python on every signature."""

from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.record.capture.signature import make_binder

PIECES = ["a", "b=1", "c=None", "/", "*", "*args", "d", "e='x'", "**kwargs"]


def function_of(parameters: list[str]):
    namespace: dict = {}
    try:
        exec(f"def f({', '.join(parameters)}): return locals()", namespace)
    except SyntaxError:
        return None
    return namespace["f"]


signatures = (
    st.lists(st.sampled_from(PIECES), unique=True)
    .map(lambda chosen: [piece for piece in PIECES if piece in chosen])
    .map(function_of)
    .filter(lambda function: function is not None)
)
arguments = st.tuples(
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "f"]), st.integers()),
)


@given(function=signatures, call=arguments)
def test_binder_agrees_with_python(function, call):
    """The binder returns the function's names and values, or raises its TypeError."""
    args, kwargs = call
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        expected = None
    try:
        found = make_binder(function)(*args, **kwargs)
    except TypeError:
        found = None
    assert found == expected


def test_receiver_is_left_out():
    """A method's self or cls is no argument."""
    assert make_binder(lambda self, a: None)(object(), 1) == {"a": 1}
    assert make_binder(lambda cls, a: None)(object(), 1) == {"a": 1}
    assert make_binder(lambda a, self: None)(1, 2) == {"a": 1, "self": 2}


def test_callable_without_a_signature_is_bound_by_position():
    """The arguments of some builtins are recorded in order."""
    assert make_binder(dict.fromkeys)([1], 2) == {"iterable": [1], "value": 2} or make_binder(dict.fromkeys)(
        [1], 2
    ) == {"args": [[1], 2]}
    assert make_binder(max)(1, 2) == {"args": [1, 2]}
