"""Damage files: cut, flip, overwrite, double, splice and fill them."""

from hypothesis import strategies as st

_where = st.floats(0, 1)
_deep = st.integers(1, 5000).map(lambda depth: b'{"resourceSpans":' + b"[" * depth + b"]" * depth + b"}")
_attribute = '{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"k","value":%s}]}]}]}]}'
garbage = (
    st.binary(max_size=40)
    | st.sampled_from(
        [
            *(b"\n", b"\r\n", b"\x00", b"\x00" * 70_000, b"x" * 70_000, b"\n" * 50, b"\xff\xfe", b"\xc3\x28"),
            *(b"{}", b"[]", b"1", b"null", b'"', b'{"resourceSpans":', b']}]}]}\n{"resourceSpans":['),
            *(b'"intValue":"', b"9" * 400, b"-1", b"1e999", b"NaN", b'"\\ud800"', b"\xed\xa0\x80"),
            (_attribute % '{"intValue":"99999999999999999999"}').encode(),
        ]
    )
    | _deep
)
_cut = st.tuples(st.just("cut"), _where)
_flip = st.tuples(st.just("flip"), _where, st.integers(0, 7))
_insert = st.tuples(st.just("insert"), _where, garbage)
_overwrite = st.tuples(st.just("overwrite"), _where, garbage)
_double = st.tuples(st.just("double"), _where, _where)
_remove = st.tuples(st.just("remove"), _where, _where)
_splice = st.tuples(st.just("splice"), _where, _where)
damages = st.lists(st.one_of(_cut, _flip, _insert, _overwrite, _double, _remove, _splice), max_size=4)
"""A list of what is done to a file, for :func:`damaged`."""


def damaged(data: bytes, done: list[tuple], other: bytes = b"") -> bytes:
    """Return damaged ``data``; ``other`` is spliced into it."""
    for kind, where, *more in done:
        at = int(where * len(data))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << more[0])]) + data[at + 1 :]
        elif kind == "insert":
            data = data[:at] + more[0] + data[at:]
        elif kind == "overwrite":
            data = data[:at] + more[0] + data[at + len(more[0]) :]
        elif kind in ("double", "remove"):
            first, last = sorted((at, int(more[0] * len(data))))
            data = data[:last] + data[first:] if kind == "double" else data[:first] + data[last:]
        elif kind == "splice":
            data = data[:at] + other[int(more[0] * len(other)) :]
    return data
