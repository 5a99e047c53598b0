"""The journal's header counts the spans of other libraries by instrumentation scope."""

import mmap
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.otlp import writer as otlp_json
from otel_rollout.otlp.scan import scope_of
from otel_rollout.spool import journal
from otel_rollout.spool.scope_rows import NO_NAME, OTHER_SCOPES, ROW_BYTES, SCOPE_ROWS, ScopeRows, scopes_in

START = 512
END = START + SCOPE_ROWS * ROW_BYTES


@given(scopes=st.lists(st.text(st.characters(), max_size=200) | st.integers(1, 9).map(str), max_size=80))
def test_every_span_is_in_one_row_whatever_the_scope(scopes):
    """The rows add up, have at most 32 names, and touch nothing else of the header."""
    header = mmap.mmap(-1, 8192)
    rows = ScopeRows(START)
    for scope in scopes:
        rows.add(header, scope)
    found = scopes_in(header, START)
    assert sum(found.values()) == len(scopes)
    assert len(found) <= SCOPE_ROWS
    assert not any(header[:START] + header[END:])


def test_scopes_beyond_the_rows_share_the_last_row():
    """Known scopes keep their own rows."""
    header, rows = mmap.mmap(-1, 8192), ScopeRows(START)
    for number in range(100):
        rows.add(header, f"scope {number}")
    rows.add(header, "scope 7")
    rows.add(header, "")
    found = scopes_in(header, START)
    assert (found["scope 7"], found["scope 30"], found[OTHER_SCOPES]) == (2, 1, 70)
    assert NO_NAME not in found


def test_long_and_empty_names_are_readable():
    """A long name is cut between two characters, and an empty one has words."""
    header, rows = mmap.mmap(-1, 8192), ScopeRows(START)
    for scope in ("界" * 50, "", "a" * 103, "lone \ud800"):
        rows.add(header, scope)
    assert list(scopes_in(header, START)) == ["界" * 33 + "…", NO_NAME, "a" * 103, "lone ?"]


def test_counts_are_in_the_file_at_once(tmp_path: Path):
    """A reader of the file has the counts without a flush or a close."""
    written = journal.Journal(tmp_path / "1.journal", 4096)
    written.count_scope("openinference.instrumentation.openai")
    written.count_scope("openinference.instrumentation.openai")
    state = journal.read_state(tmp_path / "1.journal")
    assert state is not None
    assert Counter(state.other_scopes) == {"openinference.instrumentation.openai": 2}
    assert state.drops["disk"] == 0
    assert written.state().other_scopes == state.other_scopes


def test_scope_of_a_line_is_found_without_parsing():
    """Quotation marks in the name, and resembling values, mislead nothing."""
    for name in ("plain", 'with "quotes" and \\', "界\n", ""):
        head = otlp_json.resource_head({"a": '"scope":{"name":"wrong"'})
        assert scope_of(head + otlp_json.scope_head(name, "1", {"x": 1}, "schema")) == name
    assert scope_of(b"no line") == ""
