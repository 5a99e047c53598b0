"""The views answer from every source of a fact, in DataFusion and in DuckDB alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from otel_rollout.look.analysis.timeline.lanes import lanes_in
from otel_rollout.rollout_table import RolloutTable, open_table
from otel_rollout.table import views
from otel_rollout.table.query import Engine
from otel_rollout.table.rows import batch_of
from tests.table.generated_table import Shape
from tests.table.tables import START_NS, asked, engine_phase, generated, root, row, score, written
from tests.table.training_rows import outcome

SECOND = 1_000_000_000
_KEYS = {
    "spans": "trace_id, span_id",
    "turns": "trace_id, span_id",
    "prefix_breaks": "trace_id, next_span_id",
    "tool_calls": "trace_id, span_id",
    "scores": "trace_id, name",
    "training": "trace_id",
    "unresolved_scores": "trace_id",
    "trajectories": "trace_id",
    "groups": "run_id, validate, step, sample_index",
    "steps": "run_id, validate, step",
    "phases": "trace_id",
    "engine_requests": "trace_id, span_id",
    "engine_time": "trace_id",
    "engine_steps": "run_id, validate, step",
    "runs": "run_id",
}


def rewards(tmp_path: Path, *rows: dict[str, Any]) -> dict[str, float | None]:
    found = asked(written(tmp_path / "table", rows), "SELECT trace_id, reward FROM trajectories")
    return {each["trace_id"].lstrip("0"): each["reward"] for each in found}


def test_call_around_others_has_their_model_and_reason(tmp_path: Path) -> None:
    """Where it has none, as if it returns the text alone: those of the last call directly inside it."""
    spans = [
        root("1"),
        row("1", "b", "a1", kind="LLM", reply="cut"),
        row("1", "c", "b", kind="LLM", model="old", finish_reason="stop"),
        row("1", "d", "b"),
        row("1", "e", "d", kind="LLM", model="new", finish_reason="length"),
        row("1", "f", "e", kind="LLM", model="engine", finish_reason="stop"),
        row("1", "g", "a1", kind="LLM", model="own", finish_reason="stop"),
        row("1", "h", "g", kind="LLM", model="engine", finish_reason="length"),
    ]
    store = written(tmp_path / "table", spans)
    sql = "SELECT reply, model, finish_reason FROM turns ORDER BY start_ns"
    expected = [("cut", "new", "length"), (None, "own", "stop")]
    assert [tuple(each.values()) for each in asked(store, sql)] == expected
    assert open_table(str(tmp_path / "table")).duckdb().execute(sql).fetchall() == expected
    counted = asked(store, "SELECT replies_ended, truncated FROM report_rows")
    assert counted == [{"replies_ended": 2, "truncated": 1}]


def test_unparsable_call_inside_another_one_counts_once(tmp_path: Path) -> None:
    """Whether both spans of the call say it, or the inner one alone."""
    malformed = {"kind": "LLM", "finish_reason": "MALFORMED_FUNCTION_CALL"}
    spans = [
        root("1"),
        row("1", "b", "a1", **malformed),
        row("1", "c", "b", **malformed),
        row("1", "d", "a1", kind="LLM"),
        row("1", "e", "d", **malformed),
        row("1", "f", "a1", name="extract_tool_calls", status="error"),
    ]
    found = asked(written(tmp_path / "table", spans), "SELECT unparsed FROM report_rows")
    assert found == [{"unparsed": 3}]


def test_span_that_was_delivered_twice_counts_once(tmp_path: Path) -> None:
    """A lost ledger doubles a batch, in another commit or in one; counts and tokens stay."""
    call = row("1", "b", "a1", kind="LLM", tokens_in=10, tokens_out=3)
    tool = row("1", "c", "a1", kind="TOOL", status="error", tool_name="search")
    spans = [root("1"), call, tool, score("1", "d", 0.5)]
    store = written(tmp_path / "table", spans, spans, [tool, tool])
    found = asked(
        store, "SELECT turns, tool_calls, tool_errors, tokens_in, tokens_out, reward FROM trajectories"
    )
    assert found == [
        {"turns": 1, "tool_calls": 1, "tool_errors": 1, "tokens_in": 10, "tokens_out": 3, "reward": 0.5}
    ]
    assert asked(store, "SELECT count(*) AS number FROM spans") == [{"number": 4}]
    assert asked(store, "SELECT trajectories, failed FROM steps") == [{"trajectories": 1, "failed": 0}]


def test_spans_with_one_start_time_are_all_kept(tmp_path: Path) -> None:
    """Two spans may begin in one nanosecond."""
    spans = [root("1", start_ns=START_NS), row("1", "b", "a1", start_ns=START_NS, kind="TOOL")]
    store = written(tmp_path / "table", spans)
    assert asked(store, "SELECT count(*) AS number FROM spans") == [{"number": 2}]
    assert asked(store, "SELECT tool_calls FROM trajectories") == [{"tool_calls": 1}]


def test_trajectory_without_its_root_is_running(tmp_path: Path) -> None:
    """The identity comes from its earliest span; a trace outside trajectories is none."""
    outside = row("3", "e", "ff", step=None, sample_index=None, rollout_n=None, validate=None)
    spans = [row("1", "b", "a1", kind="LLM"), root("2", status="error", error_type="ValueError"), outside]
    store = written(tmp_path / "table", spans)
    found = asked(store, "SELECT path, state, seconds, turns, error_type FROM trajectories ORDER BY trace_id")
    assert found == [
        {"path": "1/7/0", "state": "running", "seconds": None, "turns": 1, "error_type": None},
        {"path": "1/7/0", "state": "error", "seconds": 1.0, "turns": 0, "error_type": "ValueError"},
    ]


def test_trajectory_inside_another_systems_trace_has_ended(tmp_path: Path) -> None:
    """Its first agent's span stands for it, whose parent never arrives."""
    store = written(tmp_path / "table", [row("1", "b", "ff", kind="AGENT", name="agent_loop")])
    assert asked(store, "SELECT state, name FROM trajectories") == [{"state": "ok", "name": "agent_loop"}]


def test_trajectory_that_runs_is_not_the_one_that_ended_inside_it(tmp_path: Path) -> None:
    """The inner trajectory's span and score do not stand for the outer one, whose root is not there yet."""
    outer, inner = "1", {"rollout_n": 100, "kind": "AGENT"}
    rows = [
        row(outer, "b1", "a1", kind="LLM"),
        row(outer, "c1", "a1", **inner),
        row(
            outer,
            "d1",
            "c1",
            **{**inner, "kind": "EVALUATOR"},
            score_name="reward",
            score_value=77.0,
            score_by="trace",
        ),
    ]
    found = asked(written(tmp_path, rows), "SELECT path, state, reward FROM trajectories")
    assert found == [{"path": "1/7/0", "state": "running", "reward": None}]


def test_rewards_that_are_no_numbers_do_not_count_in_groups_steps_and_runs(tmp_path: Path) -> None:
    """NaN, infinity and what has no finite square are in the trajectory's row, and in no mean."""
    values = [0.0, 1.0, float("nan"), float("inf"), -1e150]
    rows = [
        each
        for number, value in enumerate(values)
        for each in (
            root(f"{number}", rollout_n=number),
            score(f"{number}", f"e{number}", value, rollout_n=number),
        )
    ]
    path = written(tmp_path, rows)
    for view in ("groups", "steps", "runs"):
        assert asked(path, f"SELECT reward_mean, trajectories FROM {view}") == [
            {"reward_mean": 0.5, "trajectories": 5}
        ]
    assert asked(path, "SELECT reward_spread FROM groups") == [{"reward_spread": 1.0}]


def test_parts_that_are_missing_in_a_name_are_dashes(tmp_path: Path) -> None:
    """The path can be pasted into `otel-rollout show`."""
    spans = [root("1", step=None), root("2", rollout_n=None, validate=True)]
    found = asked(written(tmp_path / "table", spans), "SELECT path FROM trajectories ORDER BY path")
    assert found == [{"path": "-/7/0"}, {"path": "validation/1/7/-"}]


def test_call_inside_a_call_is_not_counted_again(tmp_path: Path) -> None:
    """A client's span contains the engine's, directly or with operations between."""
    tokens = {"kind": "LLM", "tokens_in": 10, "tokens_out": 1}
    spans = [
        root("1"),
        row("1", "b", "a1", **tokens),
        row("1", "c", "b", **tokens),
        row("1", "d", "a1", **tokens),
        row("1", "e", "d"),
        row("1", "f", "e"),
        row("1", "10", "f", **tokens),
    ]
    store = written(tmp_path / "table", spans)
    assert asked(store, "SELECT turns, tokens_in FROM trajectories") == [{"turns": 2, "tokens_in": 20}]
    assert asked(store, "SELECT span_id FROM turns ORDER BY span_id") == [
        {"span_id": "b".rjust(16, "0")},
        {"span_id": "d".rjust(16, "0")},
    ]


def test_newest_score_counts_from_any_source(tmp_path: Path) -> None:
    """Undated repeats on the root count least, later scores most; a comment decides between equals."""
    undated = {"name": "reward", "value": 0.1, "label": None, "time_ns": None}
    early = {**undated, "value": 0.2, "time_ns": START_NS}
    late = {**undated, "value": 0.3, "time_ns": START_NS + 9 * SECOND}
    found = rewards(
        tmp_path,
        root("1", scores=[undated]),
        root("2", scores=[undated]),
        score("2", "b", 0.5, start_ns=START_NS + 1),
        root("3", scores=[early]),
        score("3", "c", 0.5, start_ns=START_NS + SECOND),
        root("4", scores=[late]),
        score("4", "d", 0.5, start_ns=START_NS + SECOND),
        root("5"),
        score("5", "e", 0.6, start_ns=START_NS),
        score("5", "f", 0.7, start_ns=START_NS, score_comment="because"),
    )
    assert found == {"1": 0.1, "2": 0.5, "3": 0.5, "4": 0.3, "5": 0.7}


def test_score_without_identity_is_the_traces(tmp_path: Path) -> None:
    """A score by trace id from another process has no identity of its own."""
    nothing = {"step": None, "sample_index": None, "rollout_n": None, "validate": None, "run_id": "other"}
    assert rewards(tmp_path, root("1"), score("1", "b", 0.4, **nothing)) == {"1": 0.4}


def test_score_of_a_trajectory_inside_is_not_the_outer_ones(tmp_path: Path) -> None:
    """Given inside with its identity, or later by the id of its span."""
    nothing = {"step": None, "sample_index": None, "rollout_n": None, "validate": None}
    inner = row("1", "b", "a1", kind="AGENT", rollout_n=5)
    found = rewards(
        tmp_path,
        root("1"),
        inner,
        score("1", "c", 0.9, rollout_n=5, parent_span_id="b".rjust(16, "0")),
        score("1", "d", 0.8, parent_span_id="b".rjust(16, "0"), **nothing),
        score("1", "e", 0.2, start_ns=START_NS),
    )
    assert found == {"1": 0.2}


@pytest.mark.parametrize("attributes", [None, '{"gen_ai.operation.name":"invoke_agent"}'])
def test_score_below_an_agents_operation_is_the_trajectorys(tmp_path: Path, attributes: str | None) -> None:
    """Given in another process, or by another library; an agent's operation begins no trajectory."""
    agent = row("1", "b", "a1", kind="AGENT", attributes=attributes)
    nothing = {"step": None, "sample_index": None, "rollout_n": None, "validate": None}
    for columns in ({}, nothing):
        given = score("1", "c", 0.5, parent_span_id="b".rjust(16, "0"), **columns)
        assert rewards(tmp_path / str(len(columns)), root("1"), agent, given) == {"1": 0.5}


def test_trajectory_of_which_an_agents_operation_has_ended_still_runs(tmp_path: Path) -> None:
    """Only the span of a trajectory stands for one whose root is not there."""
    rows = [
        row("1", "b", "a1", kind="AGENT", attributes=None),
        row("2", "b", "ff", kind="AGENT", rollout_n=1),
    ]
    found = asked(written(tmp_path / "table", rows), "SELECT path, state FROM trajectories ORDER BY path")
    assert [tuple(each.values()) for each in found] == [("1/7/0", "running"), ("1/7/1", "ok")]


def by_identity(trace: str, value: float, **columns: Any) -> dict[str, Any]:
    """Return the row of a score by identity, the only span of its trace."""
    apart = {"score_by": "identity", "is_root": False, "parent_span_id": None}
    return score(trace, trace, value, **{**apart, **columns})


def test_trajectory_whose_agent_has_no_duration_runs(tmp_path: Path) -> None:
    """With and without a trajectory that has ended inside, and with an ended call."""
    running = {"is_root": False, "duration_ns": None}
    rows = [root(str(number), rollout_n=number, **running) for number in range(3)]
    rows += [row("1", "b", "a1", kind="AGENT", step=9), row("2", "c", "a2", rollout_n=2)]
    store = written(tmp_path / "table", rows)
    found = asked(store, "SELECT path, state, seconds FROM trajectories ORDER BY path")
    assert [tuple(each.values()) for each in found] == [
        (f"1/7/{number}", "running", None) for number in range(3)
    ]


def test_score_by_identity_counts_for_exactly_one_match(tmp_path: Path) -> None:
    """A run without trajectories scores those of other runs; several matches count nowhere."""
    found = rewards(
        tmp_path,
        root("1"),
        by_identity("f1", 0.5, run_id="later"),
        root("2", rollout_n=1),
        root("3", rollout_n=1),
        by_identity("f2", 0.6, rollout_n=1),
        root("4", rollout_n=2),
        root("5", rollout_n=2, run_id="run-2"),
        by_identity("f3", 0.7, rollout_n=2, run_id="run-2"),
        root("6", rollout_n=3, validate=True),
        by_identity("f4", 0.8, rollout_n=3),
        by_identity("f5", 0.9, rollout_n=9),
    )
    assert found == {"1": 0.5, "2": None, "3": None, "4": None, "5": 0.7, "6": None}


def test_score_by_identity_goes_to_no_sibling_and_to_no_other_run(tmp_path: Path) -> None:
    """All parts of the identity are compared; a run with trajectories scores its own alone."""
    store = written(
        tmp_path / "table",
        [
            *(root(str(number), rollout_n=number) for number in range(4)),
            *(root(f"b{number}", rollout_n=number, run_id="run-2") for number in range(2)),
            by_identity("f1", 0.1, rollout_n=2),
            by_identity("f2", 0.2, rollout_n=3, run_id="run-2"),
            by_identity("f3", 0.3, rollout_n=0, project="another"),
            by_identity("f4", 0.4, rollout_n=0, experiment="second"),
            by_identity("f5", 0.5, rollout_n=0, validate=True),
            by_identity("f6", 0.6, rollout_n=0, sample_index="70"),
            by_identity("f7", 0.7, rollout_n=None),
            by_identity("f8", 0.8, rollout_n=None, attributes='{"rollout.rollout_n":"a"}'),
            by_identity("f9", 0.9, step=None, attributes='{"rollout.step":"last"}'),
            root("c", step=None),
            root("d", step=None, step_text="warm-up", rollout_n=None, rollout_text="a"),
            by_identity("f0", 0.95, step=None, step_text="warm-up", rollout_n=None, rollout_text="a"),
            root("e", step=2, rollout_n=0, validate=True),
            by_identity("fa", 0.97, step=None, step_text="validation/2", rollout_n=0),
        ],
    )
    scored = asked(
        store, "SELECT path, value, source FROM scores JOIN trajectories USING (trace_id) ORDER BY value"
    )
    assert scored == [
        {"path": "1/7/2", "value": 0.1, "source": "identity"},
        {"path": "warm-up/7/a", "value": 0.95, "source": "identity"},
    ]
    unresolved = asked(store, "SELECT value, reason, matches FROM unresolved_scores ORDER BY value")
    assert [(each["value"], each["reason"], each["matches"]) for each in unresolved] == [
        (0.2, "unknown", 0),
        (0.3, "unknown", 0),
        (0.4, "unknown", 0),
        (0.5, "unknown", 0),
        (0.6, "unknown", 0),
        (0.7, "ambiguous", 4),
        (0.8, "unknown", 0),
        (0.9, "unknown", 0),
        (0.97, "unknown", 0),
    ]


def test_scores_of_a_step_stay_when_the_step_is_repeated(tmp_path: Path) -> None:
    """A trajectory that began after a score was given does not count; a score after both is of none."""
    store = written(
        tmp_path / "table",
        [root("1"), by_identity("f1", 0.1), root("2", rollout_n=1), by_identity("f2", 0.2, rollout_n=None)],
        [root("3"), root("4", rollout_n=1), by_identity("f3", 0.3)],
        [by_identity("f4", 0.4, step=2, start_ns=START_NS), root("5", step=2)],
    )
    rewards = asked(store, "SELECT trace_id, value FROM scores ORDER BY value")
    assert [(each["trace_id"][-1], each["value"]) for each in rewards] == [("1", 0.1), ("5", 0.4)]
    unresolved = asked(store, "SELECT value, reason, matches FROM unresolved_scores ORDER BY value")
    assert [tuple(each.values()) for each in unresolved] == [(0.2, "ambiguous", 2), (0.3, "ambiguous", 2)]


def test_score_by_identity_without_rollout_is_the_only_trajectorys(tmp_path: Path) -> None:
    """A score that was delivered twice counts once, and the newest score of a name counts."""
    given = [root("1"), by_identity("f1", 0.1, rollout_n=None), by_identity("f2", 0.2)]
    store = written(tmp_path / "table", given, given)
    assert asked(store, "SELECT reward FROM trajectories") == [{"reward": 0.2}]
    assert asked(store, "SELECT * FROM unresolved_scores") == []


def test_labels_and_bools_are_scores_too(tmp_path: Path) -> None:
    """A bool is number and label; a text is a label alone and no reward."""
    spans = [
        root("1"),
        score("1", "b", 1.0, score_label="True", score_name="solved"),
        score("1", "c", None, score_label="nan"),
    ]
    store = written(tmp_path / "table", spans)
    found = asked(store, "SELECT name, value, label, source FROM scores ORDER BY name")
    assert found == [
        {"name": "reward", "value": None, "label": "nan", "source": "trace"},
        {"name": "solved", "value": 1.0, "label": "True", "source": "trace"},
    ]
    assert asked(store, "SELECT reward FROM trajectories") == [{"reward": None}]


def test_groups_steps_and_runs_sum_their_trajectories(tmp_path: Path) -> None:
    """Validation is apart from training, and a group is a row of the dataset in one step."""
    spans = []
    for number, (sample, reward) in enumerate((("7", 0.0), ("7", 1.0), ("8", 0.5)), start=1):
        which: dict[str, Any] = {"sample_index": sample, "rollout_n": number}
        spans += [root(str(number), **which), score(str(number), f"b{number}", reward, **which)]
    spans += [root("4", validate=True, status="error")]
    store = written(tmp_path / "table", spans)
    columns = "path, trajectories, failed, reward_mean, reward_spread"
    assert asked(store, f"SELECT {columns} FROM groups ORDER BY path") == [
        {"path": "1/7", "trajectories": 2, "failed": 0, "reward_mean": 0.5, "reward_spread": 1.0},
        {"path": "1/8", "trajectories": 1, "failed": 0, "reward_mean": 0.5, "reward_spread": None},
        {
            "path": "validation/1/7",
            "trajectories": 1,
            "failed": 1,
            "reward_mean": None,
            "reward_spread": None,
        },
    ]
    columns = "validate, groups, trajectories, failed, reward_mean"
    assert asked(store, f"SELECT {columns} FROM steps ORDER BY validate") == [
        {"validate": False, "groups": 2, "trajectories": 3, "failed": 0, "reward_mean": 0.5},
        {"validate": True, "groups": 1, "trajectories": 1, "failed": 1, "reward_mean": None},
    ]
    assert asked(store, "SELECT run_id, first_step, trajectories, validations FROM runs") == [
        {"run_id": "run-1", "first_step": 1, "trajectories": 4, "validations": 1}
    ]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[RolloutTable, Any]:
    """A table with spans delivered twice, a running trajectory, scores by identity; and DuckDB's views."""
    path = tmp_path_factory.mktemp("tables") / "table"
    store = generated(path, Shape(40, per_step=16), rows_each=400)
    again = [root("1"), score("1", "b", 0.5), row("2", "c", "a2", kind="LLM", tokens_in=5)]
    again += [by_identity("f1", 0.7), by_identity("f2", 0.8, rollout_n=9), root("3", rollout_n=3)]
    again += [by_identity("f3", 0.9, rollout_n=3), by_identity("f4", 1.0, rollout_n=None)]
    again += [root("4", rollout_n=4), by_identity("f5", 0.4, rollout_n=4), root("5", rollout_n=4)]
    times = '{"gen_ai.latency.e2e":1,"gen_ai.latency.time_to_first_token":0.25,"gen_ai.request.n":1}'
    again += [row("2", "d", "c", kind=None, name="llm_request", attributes=times)]
    for span, phase in (("e", "queue"), ("f", "decode")):
        again.append(engine_phase("2", span, "d", phase))
    again += [row("2", "9", "c", name="llm_request", attributes=times)]
    again += outcome({"trained": False, "trained_reward": 0.5, "advantage": math.nan}, rollout_n=3)
    again += outcome({"trained_tokens": 2.0**63, "logprob_diff_turn": 1.5}, rollout_n=3)
    for number in (7, 8):
        store.append([batch_of(again)], "again", number)
    table = open_table(str(path))
    return table, table.duckdb()


@pytest.mark.parametrize("view", views.NAMES)
def test_duckdb_gives_the_same_rows(engines: tuple[RolloutTable, Any], view: str) -> None:
    """The shipped SQL runs unchanged in DuckDB."""
    table, duckdb = engines
    sql = f"SELECT * FROM {view} ORDER BY {_KEYS[view]}"
    ours = pa.table(table.sql(sql).arrow()).to_pylist()
    assert ours
    assert _rounded(duckdb.sql(sql).to_arrow_table().to_pylist()) == _rounded(ours)


def test_counts_that_are_no_integers_of_64_bits_are_null(tmp_path: Path) -> None:
    """One such score breaks no other row; the largest integer that a float holds is kept."""
    counts = {"trained_tokens": 2.0**63, "trained_step": -(2.0**64), "logprob_diff_token": 0.5}
    last = {"trained_tokens": 2.0**63 - 1024, "trained_step": -(2.0**63), "logprob_diff_turn": 3.0}
    rows = [root("1"), root("2", rollout_n=1), *outcome(counts), *outcome(last, rollout_n=1)]
    columns = "trained_tokens, trained_step, mismatch_token, mismatch_turn"
    store = written(tmp_path / "table", rows)
    found = asked(store, f"SELECT {columns} FROM training ORDER BY rollout_n")
    assert [tuple(each.values()) for each in found] == [
        (None, None, None, None),
        (2**63 - 1024, -(2**63), None, 3),
    ]


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with floats rounded, because engines add them up in different orders."""
    return [
        {name: round(value, 12) if isinstance(value, float) else value for name, value in each.items()}
        for each in rows
    ]


def test_phases_of_a_trajectory_add_up_to_its_duration(tmp_path: Path) -> None:
    """Time that calls share counts once, for the one that began first; a later reward makes it longer."""
    at = START_NS + 100 * SECOND
    spans = [
        root("1", start_ns=at, duration_ns=20 * SECOND),
        row("1", "b", "a1", kind="LLM", start_ns=at + SECOND, duration_ns=4 * SECOND),
        row("1", "c", "b", kind="LLM", start_ns=at + 2 * SECOND, duration_ns=2 * SECOND),
        row("1", "d", "a1", kind="TOOL", start_ns=at + 4 * SECOND, duration_ns=4 * SECOND),
        row("1", "e", "a1", kind="TOOL", start_ns=at + 5 * SECOND, duration_ns=5 * SECOND),
        row("1", "f", "a1", kind="CHAIN", start_ns=at, duration_ns=20 * SECOND),
        row("1", "10", "a1", kind="EVALUATOR", start_ns=at + 18 * SECOND, duration_ns=6 * SECOND),
        row("2", "b2", "a2", kind="LLM", start_ns=at, duration_ns=3 * SECOND),
        root("3", start_ns=at, duration_ns=2 * SECOND),
    ]
    found = asked(
        written(tmp_path / "table", spans),
        "SELECT seconds, generate_seconds, tool_seconds, reward_seconds, waiting_seconds FROM phases "
        "ORDER BY trace_id",
    )
    assert [tuple(each.values()) for each in found] == [
        (24.0, 4.0, 5.0, 6.0, 9.0),
        (None, 3.0, 0.0, 0.0, None),
        (2.0, 0.0, 0.0, 0.0, 2.0),
    ]


def test_phase_with_a_call_of_unknown_time_is_unknown(tmp_path: Path) -> None:
    """So is waiting, and a phase that may have had such calls; a score that was given is no call."""
    at = START_NS + 100 * SECOND
    generate = {"kind": "LLM", "start_ns": at, "duration_ns": 2 * SECOND}
    roots = [root(str(n), start_ns=at, duration_ns=9 * SECOND) for n in (1, 2, 3, 4)]
    spans = [
        row("1", "b1", "a1", **generate),
        row("1", "c1", "a1", kind="TOOL", start_ns=at + 2 * SECOND, duration_ns=None),
        row("2", "b2", "a2", **generate),
        row("2", "c2", "a2", kind="LLM", start_time=None, start_ns=7, duration_ns=0),
        row("3", "b3", "a3", kind="EVALUATOR", start_time=None, start_ns=8, duration_ns=0),
        row("4", "b4", "a4", **generate),
        score("4", "c4", 1.0, start_time=None, start_ns=9, duration_ns=0),
    ]
    store = written(tmp_path / "table", [*roots, *spans])
    figures = "seconds, generate_seconds, tool_seconds, reward_seconds, waiting_seconds"
    for view in ("phases", "report_rows"):
        found = asked(store, f"SELECT {figures} FROM {view} ORDER BY trace_id")
        assert [tuple(each.values()) for each in found] == [
            (9.0, 2.0, None, None, None),
            (9.0, None, None, None, None),
            (9.0, None, None, None, None),
            (9.0, 2.0, 0.0, 0.0, 7.0),
        ]
    (step,) = asked(
        store, "SELECT seconds_p50, seconds_generate, seconds_tool, seconds_waiting FROM report_steps"
    )
    assert tuple(step.values()) == (9.0, None, None, None)


def test_phases_of_a_killed_trajectory_are_known_in_part(tmp_path: Path) -> None:
    """The call that was open is lost with its process: what is known counts, except in the step's means."""
    at = START_NS + 100 * SECOND
    killed = {"status": "error", "error_message": "process ended before the trajectory did"}
    spans = [
        root("1", start_ns=at, duration_ns=9 * SECOND, **killed),
        root("2", start_ns=at, duration_ns=8 * SECOND),
        *(
            row(n, f"b{n}", f"a{n}", kind="LLM", start_ns=at + SECOND, duration_ns=2 * SECOND)
            for n in ("1", "2")
        ),
    ]
    store = written(tmp_path / "table", spans)
    figures = "seconds, generate_seconds, tool_seconds, reward_seconds, waiting_seconds"
    found = asked(store, f"SELECT {figures} FROM phases ORDER BY trace_id")
    assert [tuple(each.values()) for each in found] == [
        (9.0, 2.0, None, None, None),
        (8.0, 2.0, 0.0, 0.0, 6.0),
    ]
    (step,) = asked(store, "SELECT seconds_max, seconds_generate, seconds_waiting FROM report_steps")
    assert tuple(step.values()) == (9.0, 2.0, 6.0)
    (lane, _) = lanes_in(Engine(store.open()))
    spent = {part.phase: (part.end - part.start) / SECOND for part in lane.segments}
    assert spent == {"unrecorded": 6.0, "generate": 2.0}


def test_first_of_a_trajectorys_broken_prefixes_has_its_turn(tmp_path: Path) -> None:
    """Turns are counted from 1, and an engine's span inside a client's is no turn."""
    first = {"break_of": "c1".rjust(16, "0"), "break_token": 40, "break_removed": 3, "break_added": 2}
    second = {"break_of": "c2".rjust(16, "0"), "break_token": 90, "break_removed": 5, "break_kind": "cut"}
    store = written(
        tmp_path / "table",
        [
            root("1"),
            *(row("1", f"c{turn}", "a1", kind="LLM") for turn in (0, 1)),
            row("1", "c2", "a1", kind="LLM", break_kind="retokenized", break_was="a|b", **first),
            row("1", "e2", "c2", kind="LLM", break_kind="retokenized", **first),
            row("1", "c3", "a1", kind="LLM", **second),
            root("2"),
            row("2", "c4", "a2", kind="LLM"),
        ],
    )
    counted = asked(store, "SELECT broken_turns FROM trajectories ORDER BY trace_id")
    assert [each["broken_turns"] for each in counted] == [2, 0]
    columns = "turn, next_turn, token, removed, added, kind, was, place, breaks"
    assert [tuple(each.values()) for each in asked(store, f"SELECT {columns} FROM prefix_breaks")] == [
        (2, 3, 40, 3, 2, "retokenized", "a|b", 1, 2),
        (3, 4, 90, 5, None, "cut", None, 2, 2),
    ]


def test_trajectory_has_the_policy_versions_of_its_turns(tmp_path: Path) -> None:
    """A turn may say more than the root, and a trajectory that runs has no root yet."""
    store = written(
        tmp_path / "table",
        [
            root("1", policy_version_min=7, policy_version_max=7),
            row("1", "c1", "a1", kind="LLM", policy_version_min=7, policy_version_max=7),
            row("1", "c2", "a1", kind="LLM", policy_version_min=7, policy_version_max=9),
            row("2", "c3", "a2", kind="LLM", policy_version_min=3),
            root("3", policy_version_min=5, policy_version_max=6),
            root("4"),
        ],
    )
    versions = "policy_version_min AS first, policy_version_max AS last"
    found = asked(store, f"SELECT {versions} FROM trajectories ORDER BY trace_id")
    assert [(each["first"], each["last"]) for each in found] == [(7, 9), (3, 3), (5, 6), (None, None)]
    of_turns = asked(store, f"SELECT {versions} FROM turns ORDER BY start_ns")
    assert [(each["first"], each["last"]) for each in of_turns] == [(7, 7), (7, 9), (3, None)]


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_rows_of_a_span_the_latest_end_counts(tmp_path: Path, order: int) -> None:
    """Then the longest attributes: a delivery may have rewritten or cut the span. Then the greater text."""
    begun = {"start_ns": START_NS, "kind": "LLM"}
    rows = [
        row("1", "b", "a1", **begun, duration_ns=None, attributes='{"a":"still running"}'),
        row("1", "b", "a1", **begun, duration_ns=2_000, attributes='{"a":1}'),
        row("1", "b", "a1", **begun, duration_ns=2_000, attributes='{"a":12}'),
        row("1", "b", "a1", **begun, duration_ns=2_000, attributes='{"a":13}'),
        row("1", "b", "a1", **begun, duration_ns=2_000, attributes='{"a":11}'),
    ][::order]
    store = written(tmp_path / "table", [root("1")], *([each] for each in rows))
    found = asked(store, "SELECT duration_ns, attributes FROM spans WHERE kind = 'LLM'")
    assert found == [{"duration_ns": 2_000, "attributes": '{"a":13}'}]


def test_steps_that_are_text_are_steps_of_their_own(tmp_path: Path) -> None:
    """Each text has a row of ``steps``, and groups."""
    texts = [root(str(number), step=None, step_text=text) for number, text in enumerate(("a", "a", "b"))]
    store = written(tmp_path / "table", [*texts, root("9")])
    assert asked(
        store, "SELECT step, step_text, groups, trajectories FROM steps ORDER BY step, step_text"
    ) == [
        {"step": 1, "step_text": None, "groups": 1, "trajectories": 1},
        {"step": None, "step_text": "a", "groups": 1, "trajectories": 2},
        {"step": None, "step_text": "b", "groups": 1, "trajectories": 1},
    ]
