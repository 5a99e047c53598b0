"""Figures of trajectories are defined once, and joined to trajectories for those who name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rollout.otlp.model_calls import CUT_BY_LENGTH
from otel_rollout.table import figures, views
from otel_rollout.table.query import Engine, dicts_of
from tests.table.tables import asked, root, row, score, written
from tests.table.training_rows import trained

_IDENTITY = {"trace_id", "run_id", "project", "experiment", "step", "step_text"} | {
    "sample_index",
    "rollout_n",
    "validate",
}


@pytest.mark.parametrize("reason", [*sorted(CUT_BY_LENGTH), "stop"])
def test_replies_are_cut_by_the_reasons_that_otlp_names(tmp_path: Path, reason: str) -> None:
    """Of several choices one is enough; upper case is the same reason."""
    calls = [row("1", "b", "a1", kind="LLM", finish_reason=f"stop, {reason.upper()}")]
    store = written(tmp_path / "table", [root("1"), *calls, row("1", "c", "a1", kind="LLM")])
    found = asked(store, "SELECT replies_ended, truncated FROM trajectory_rows")
    assert found == [{"replies_ended": 1, "truncated": int(reason != "stop")}]


def test_named_columns_are_joined(tmp_path: Path) -> None:
    """Each view has the columns that are listed for it; no other view is read."""
    engine = Engine(written(tmp_path / "table", [root("1")]).open())
    usual = engine.columns_of("trajectories")
    assert figures.trajectories_with(["reward > 1", "path"]) == "trajectories"
    for view, columns in figures.COLUMNS.items():
        assert [*engine.columns_of(figures.trajectories_with([columns[0]]))] == [*usual, *columns]
        assert set(columns) == set(engine.columns_of(view)) - _IDENTITY
    everything = figures.trajectories_with(columns[0] for columns in figures.COLUMNS.values())
    assert engine.run(f"SELECT * FROM {everything}").num_rows == 1


def test_row_of_a_trajectory_has_what_the_other_views_say(tmp_path: Path) -> None:
    """One view has all figures of a trajectory."""
    spans = [
        root("1"),
        row("1", "b", "a1", kind="LLM", tokens_in=3, break_token=7),
        score("1", "c", 0.5),
        score("1", "d", 1.0, score_name="trained"),
        row("1", "e", "a1", status="error", name="extract_tool_calls"),
    ]
    engine = Engine(written(tmp_path / "table", spans).open())
    (found,) = engine.run("SELECT * FROM trajectory_rows").to_struct_array().to_pylist()
    assert {name: found[name] for name in ("turns", "tokens_in", "unparsed", "reward", "break_token")} == {
        "turns": 1,
        "tokens_in": 3,
        "unparsed": 1,
        "reward": 0.5,
        "break_token": 7,
    }
    assert (found["trained"], found["scored_reward"]) == (1.0, 0.5)
    assert 0 < found["generate_ns"] <= found["duration_ns"]
    assert {each["name"]: each["value"] for each in found["scores"]} == {"reward": 0.5, "trained": 1.0}


def test_every_view_comes_after_those_that_it_reads() -> None:
    """Also in an engine that reads the stored rows of trajectories."""
    for place, name in enumerate(views.order()):
        for definition in (views.sql_of, views.of_merged_rows):
            assert {*views.needed_by(f"SELECT * FROM {name}", definition)} <= {*views.order()[: place + 1]}


_OTHERS = ("reward", "policy_lag", "seconds")
"""Columns of a report's rows of which other views have one of the name, with another meaning. Only ``phases``
has the same ``seconds``; those of the others are the root's."""
_OF_REPORTS = {
    "finite_rewards": {"reward": "finite_reward"},
    "phases": {},
    "reply_figures": {},
    "engine_time": {},
    "training": {"trainer_lag": "lag"},
}
"""View → column of a report's row that has another name there."""


@pytest.mark.parametrize(("of_root", "of_call", "oldest"), [(3, None, 3), (None, 3, 3), (3, 2, 2), (2, 3, 2)])
def test_lag_by_step_counts_from_the_version_that_trajectories_name(
    tmp_path: Path, of_root: int | None, of_call: int | None, oldest: int
) -> None:
    """So `list --lag` finds what `report` counts, whether root or calls say the version."""
    call = row("1", "b", "a1", kind="LLM", policy_version_min=of_call)
    store = written(tmp_path / "table", [root("1", policy_version_min=of_root), call])
    (found,) = asked(
        store,
        "SELECT trajectory.step, policy_version_min, lag, training.lag_source, policy_lag, trainer_lag "
        "FROM trajectories AS trajectory JOIN training USING (trace_id) JOIN report_rows USING (trace_id)",
    )
    lag = found["step"] - oldest
    assert (found["policy_version_min"], found["lag"], found["lag_source"]) == (oldest, lag, "step")
    assert (found["policy_lag"], found["trainer_lag"]) == (lag, lag)


def test_rows_of_a_report_say_what_the_views_say(tmp_path: Path) -> None:
    """Reports read one view; its expressions are those of the views that they read one by one."""
    tool = row("1", "c", "a1", kind="TOOL", tool_name="search", status="error")
    call = row("1", "b", "a1", kind="LLM", tokens_in=3, policy_version_min=1, policy_version_max=2)
    odd = [
        root("2", rollout_n=1, policy_version_min=0),
        score("2", "d", None, score_label="nan", rollout_n=1),
    ]
    named = {"trained": True, "trained_reward": 0.5, "trained_tokens": 7, "logprob_diff_turn": 2.5}
    scored = [
        *trained(11, 1, named, reward=0.25),
        *trained(12, 1, {"trained": False, "policy_lag": 3.0}, policy_version_min=0),
        *trained(13, 1, reward=None),
        *trained(14, 2),
    ]
    engine = Engine(written(tmp_path / "table", [root("1"), call, tool, *odd, *scored]).open())
    found = dicts_of(engine.run("SELECT * FROM report_rows ORDER BY trace_id"))
    for view, renamed in _OF_REPORTS.items():
        told = {each["trace_id"]: each for each in dicts_of(engine.run(f"SELECT * FROM {view}"))}
        others = {*_OTHERS} - ({"seconds"} if view == "phases" else set())
        same = found[0].keys() & {*engine.columns_of(view)} - others
        shared = {name: name for name in same} | renamed
        for each in found:
            if each["trace_id"] in told:
                expected = told[each["trace_id"]]
                assert {name: each[name] for name in shared} == {
                    name: expected[own] for name, own in shared.items()
                }
    assert {each["reason"] for each in found} == {None, "no reason given", "the trainer did not name it"}


def test_counts_of_a_trajectory_are_the_same_in_its_row_and_in_every_view(tmp_path: Path) -> None:
    """Without calls they are zero; failed calls are unknown where no call says how it ended."""
    known, unknown = {"kind": "TOOL", "status": "error"}, {"kind": "TOOL", "status": None}
    spans = [root("1"), root("2"), row("2", "b", "a2", **known), root("3"), row("3", "c", "a3", **unknown)]
    store = written(tmp_path / "table", spans)
    for view in ("trajectory_rows", "trajectories", "report_rows"):
        found = asked(store, f"SELECT turns, tool_calls, tool_errors FROM {view} ORDER BY trace_id")
        assert [tuple(each.values()) for each in found] == [(0, 0, 0), (0, 1, 1), (0, 1, None)], view
