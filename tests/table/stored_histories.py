"""Draw histories of a rollout table: deliveries in any order, repeats, late scores, compaction, kills."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.table.tables import START_NS, root, row, score

Row = dict[str, Any]
SECOND = 1_000_000_000
_IDENTITIES: tuple[Row, ...] = (
    {},
    {"rollout_n": 1},
    {},  # the step is retried: the same path, later
    {"run_id": "run-2"},
    {"step": 2},
    {"step": None, "step_text": "warm-up"},
    {"step": None, "run_id": None},
)
"""Columns of each trajectory's spans, beside those of trajectory 1/7/0 of ``run-1``."""
_NOBODY: Row = dict.fromkeys(("step", "sample_index", "rollout_n", "validate"))


class Deliver(NamedTuple):
    """Rows come in one commit; those of an earlier one may come again."""

    rows: list[Row]


class Compact(NamedTuple):
    """Files are merged, and trajectory rows are stored in a second commit.

    Attributes:
        meanwhile: rows that a writer commits between both; none without any.
        is_killed: whether the process dies between both.
    """

    meanwhile: list[Row]
    is_killed: bool


class Prune(NamedTuple):
    """The rows of a step of a run go, and trajectory rows are stored in a second commit.

    Attributes:
        run_id: the run.
        step: the step.
        is_killed: whether the process dies between both.
    """

    run_id: str | None
    step: int | None
    is_killed: bool


def _spans(number: int) -> st.SearchStrategy[Row]:
    """Return the spans that a trajectory may have, or scores that its trace may get."""
    trace, own = f"{number + 1}", _IDENTITIES[number]
    at = START_NS + number * 100 * SECOND

    def made(place: int, make: Any, *arguments: Any, **columns: Any) -> Row:
        return dict(make(trace, *arguments, **{"start_ns": at + place * SECOND, **columns}))

    repeated = {"name": "reward", "value": 0.125, "label": None, "time_ns": at + 30 * SECOND}
    inner = {**own, "run_id": "run-2", "step": 2, "rollout_n": 9, "kind": "AGENT"}
    return st.sampled_from(
        [
            made(0, root, **own),
            made(0, root, **own, scores=[repeated], duration_ns=3 * SECOND),
            made(0, root, **own, status="error", duration_ns=2 * SECOND),
            made(0, root, **own, is_root=False, duration_ns=None),
            made(1, row, f"b{trace}", f"a{trace}", **own, kind="LLM", tokens_in=3),
            made(2, row, f"c{trace}", f"b{trace}", **own, kind="LLM", tokens_in=2, tokens_out=1),
            made(3, row, f"d{trace}", f"a{trace}", **own, kind="TOOL", status="error"),
            made(4, row, f"e{trace}", f"a{trace}", **inner),
            made(10, score, f"f{trace}", 0.25, **own),
            made(20, score, f"10{trace}", 0.5, **{**own, **_NOBODY, "run_id": "judge"}),
        ]
    )


@st.composite
def _by_identity(draw: st.DrawFn) -> Row:
    """Return a score by identity: of a run with trajectories, or of one that may never have any."""
    number = draw(st.integers(0, len(_IDENTITIES) - 1))
    run, late = draw(st.sampled_from(["run-1", "run-2", "judge"])), draw(st.sampled_from([5, 10**6]))
    rollout = draw(st.sampled_from([0, 1, None]))
    columns = {**_IDENTITIES[number], "run_id": run, "rollout_n": rollout, "is_root": False}
    trace = f"f{number}{run[-1]}{late}{rollout}".encode().hex()[:30]
    place = {"start_ns": START_NS + late * SECOND, "score_by": "identity", "parent_span_id": None}
    return score(trace, "f", 0.75 + late / 10**7, **{**columns, **place})


_rows = st.integers(0, len(_IDENTITIES) - 1).flatmap(_spans) | _by_identity()
_few, _many = st.lists(_rows, min_size=1, max_size=4), st.lists(_rows, min_size=4, max_size=16)
_is_killed = st.sampled_from([False, False, True])
Operation = Deliver | Compact | Prune
_further = st.lists(
    st.one_of(
        st.builds(Deliver, _few),
        st.builds(Deliver, _few),
        st.builds(Compact, st.just([]) | _few, _is_killed),
        st.builds(
            Prune, st.sampled_from(["run-1", "run-2", "judge"]), st.sampled_from([1, 2, None]), _is_killed
        ),
    ),
    min_size=1,
    max_size=6,
)
histories: st.SearchStrategy[list[Operation]] = st.builds(
    lambda rows, meanwhile, further: [Deliver(rows), Compact(meanwhile, False), *further],
    _many,
    st.just([]) | _few,
    _further,
)
