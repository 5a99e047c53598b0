"""The siblings of a group are found in a table by every form of its name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rollout.look.analysis.group.siblings import MAX_SIBLINGS, GroupName, Siblings, names_in, siblings_in
from otel_rollout.look.analysis.group.tree import tree_of
from otel_rollout.look.analysis.run_choice import Run, run_of
from otel_rollout.look.conversation.summary import reward_of
from otel_rollout.look.conversation.trajectories import summaries_of
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.listings import LISTINGS
from otel_rollout.look.sources import reference
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.look.web.request import Asked
from otel_rollout.look.web.trajectory_list import Filters
from otel_rollout.table.filters import equals, steps
from otel_rollout.table.query import Engine
from tests.table.tables import START_NS, root, row, score, written

SECOND = 1_000_000_000


def reply(trace: str, text: str, **columns: Any) -> dict[str, Any]:
    """Return the row of a model call that answers a question."""
    asked = json.dumps({"messages": [{"role": "user", "content": "Why?"}]})
    return row(trace, "b" + trace, "a" + trace, kind="LLM", input=asked, output=json.dumps(text), **columns)


def trajectory(trace: str, text: str, reward: float | None = None, **identity: Any) -> list[dict[str, Any]]:
    """Return the rows of a trajectory with one model call."""
    rows = [reply(trace, text, **identity), root(trace, **identity)]
    return [*rows, score(trace, "c" + trace, reward, **identity)] if reward is not None else rows


def engine(tmp_path: Path, *trajectories: list[dict[str, Any]]) -> Engine:
    return Engine(written(tmp_path / "table", [row for rows in trajectories for row in rows]).open())


def in_table(engine: Engine, text: str, run: Run | None = None, location: str = "") -> Siblings:
    """Return the siblings of a group in a table, or in one of its runs."""
    chosen = (run.condition, run.name) if run else ()
    return siblings_in(TableSource(engine, location, *chosen), text)


def told(found: Siblings) -> list[tuple[str, str, float | None, str]]:
    """Return name, state, reward and reply of each sibling."""
    return [
        (each.name, each.summary.state, reward_of(each.summary), each.conversation.turns[-1].text)
        for each in found.found
    ]


def test_siblings_are_told_apart_by_their_own_turns(tmp_path: Path) -> None:
    """What a reward function, its judge or a sub-trajectory says does not tell that siblings differ."""

    def judged(trace: str, rollout: int, verdict: str) -> list[dict[str, Any]]:
        identity = {"rollout_n": rollout}
        call = {"kind": "LLM", "input": '"Is it right?"', "output": json.dumps(verdict)}
        return [
            *trajectory(trace, "It is so.", float(rollout), **identity),
            row(trace, "d" + trace, "a" + trace, kind="EVALUATOR", name="grade", output=verdict, **identity),
            row(trace, "e" + trace, "d" + trace, **call, **identity),
            row(trace, "f" + trace, "a" + trace, **call, rollout_n=100),
        ]

    found = in_table(engine(tmp_path, judged("1", 0, "no"), judged("2", 1, "yes")), "1/7")
    assert told(found) == [("1/7/0", "ok", 0.0, "It is so."), ("1/7/1", "ok", 1.0, "It is so.")]
    assert [leaf.siblings for leaf in tree_of(found).mixed] == [found.found]


def test_siblings_are_read_in_order_with_state_and_reward(tmp_path: Path) -> None:
    """A trajectory of another group, run or step, and one of a validation, is none of them."""
    asked = engine(
        tmp_path,
        trajectory("3", "third", rollout_n=2, status="error"),
        trajectory("1", "first", 1.0, rollout_n=0),
        [reply("2", "second", rollout_n=1)],
        trajectory("4", "other row", sample_index="8"),
        trajectory("5", "other step", step=2),
        trajectory("6", "validation", 0.5, validate=True),
        trajectory("7", "older run", run_id="run-0", start_ns=START_NS - SECOND),
    )
    found = in_table(asked, "1/7", location="here")
    assert told(found) == [
        ("1/7/0", "ok", 1.0, "first"),
        ("1/7/1", "running", None, "second"),
        ("1/7/2", "error", None, "third"),
    ]
    assert (found.path, found.number, found.location) == ("1/7", 3, "here")
    assert in_table(asked, "1/7/2").found == found.found
    assert told(in_table(asked, "validation/1/7")) == [("validation/1/7/0", "ok", 0.5, "validation")]
    older = Run("run-0", "project", "first")
    assert told(in_table(asked, "1/7", older)) == [("1/7/0", "ok", None, "older run")]
    listed = summaries_of(asked, [run_of(asked, "run-1").condition, equals("group_path", "1/7")])
    assert [(each.path, each.state, reward_of(each)) for each in listed] == [
        ("1/7/0", "ok", 1.0), ("1/7/1", "running", None), ("1/7/2", "error", None)
    ]  # fmt: skip


def test_parts_of_a_name_that_were_not_recorded_are_dashes(tmp_path: Path) -> None:
    """A run without steps or rows has groups too; a step that is text has a name of its own."""
    text_step = {"step": None, "step_text": "warm-up"}
    asked = engine(
        tmp_path,
        trajectory("1", "no step", step=None),
        trajectory("2", "no row", sample_index=None),
        trajectory("3", "a/b", sample_index="a/b"),
        trajectory("4", "text", **text_step, sample_index="9"),
    )
    assert told(in_table(asked, "-/7")) == [("-/7/0", "ok", None, "no step")]
    assert told(in_table(asked, "1/-")) == [("1/-/0", "ok", None, "no row")]
    assert told(in_table(asked, "1/a/b")) == [("1/a/b/0", "ok", None, "a/b")]
    assert told(in_table(asked, "warm-up/9")) == [("warm-up/9/0", "ok", None, "text")]


def test_group_is_found_by_the_name_that_a_list_shows(tmp_path: Path) -> None:
    """Lists make control characters visible; a step may have slashes."""
    asked = engine(
        tmp_path,
        trajectory("1", "break", sample_index="x\ny"),
        trajectory("2", "slash", step=None, step_text="a/b", sample_index="5"),
    )
    assert told(in_table(asked, "1/x␊y")) == [("1/x\ny/0", "ok", None, "break")]
    assert told(in_table(asked, "a/b/5")) == [("a/b/5/0", "ok", None, "slash")]


def test_names_are_those_that_were_recorded_with_their_outer_spaces(tmp_path: Path) -> None:
    """Step, row and experiment are taken as they are, by name, group, page and filter."""
    named = {"step": None, "step_text": " 7 ", "experiment": " first "}
    padded = trajectory("1", "padded", **named, sample_index=" 8 ", rollout_n=None, rollout_text=" 0 ")
    asked = engine(tmp_path, padded, trajectory("2", "plain", step=7, sample_index="8"))
    (path, group) = (" 7 / 8 / 0 ", " 7 / 8 ")
    source = TableSource(asked, "table")
    for name in (path, f"{group}/", " 7 /"):
        assert [each.path for each in source.find(reference.parse(name))] == [path], name
    assert [each.path for each in source.find(reference.parse("7/8/0"))] == ["7/8/0"]
    assert told(in_table(asked, group)) == [(path, "ok", None, "padded")]
    of_page: Any = SimpleNamespace(engine=asked, run=run_of(asked, " first "))
    page = Asked("/trajectory", {"name": path}, of_page, of_page, *[of_page] * 3, is_live=False)
    assert page.trajectory("name")[0].path == path
    for text, paths in ((" 7 ", [path]), ("7", ["7/8/0"])):
        conditions = [steps(text, "--step")]
        assert [each.path for each in summaries_of(asked, conditions)] == paths
    (by_row,) = LISTINGS["trajectories"].conditions(Filters({"sample": " 8 "}).values()).values()
    assert [each.path for each in summaries_of(asked, [by_row])] == [path]


def test_trajectories_with_one_path_are_told_apart_by_trace_id(tmp_path: Path) -> None:
    """A step that was started again has each trajectory twice."""
    asked = engine(
        tmp_path, trajectory("1", "first"), trajectory("2", "again"), trajectory("3", "c", rollout_n=1)
    )
    found = in_table(asked, "1/7").found
    assert [(each.name, each.reference) for each in found] == [
        ("1/7/0 (00000000)", f"{1:032x}"), ("1/7/0 (00000000)", f"{2:032x}"), ("1/7/1", "1/7/1")
    ]  # fmt: skip


def test_trajectory_inside_another_one_is_no_sibling(tmp_path: Path) -> None:
    """Its spans have the identity of the group, but its trace is another group's trajectory."""
    inner = row("2", "d2", "a2", kind="AGENT", sample_index="7")
    asked = engine(tmp_path, trajectory("1", "own"), [*trajectory("2", "outer", sample_index="8"), inner])
    assert [each.summary.trace_id for each in in_table(asked, "1/7").found] == [f"{1:032x}"]


def test_score_by_identity_is_a_reward_and_no_sibling(tmp_path: Path) -> None:
    """It is a trace of its own, which names the group's trajectory."""
    given = score("9", "e9", 0.25, score_by="identity", parent_span_id=None)
    asked = engine(tmp_path, trajectory("1", "own"), [given])
    assert told(in_table(asked, "1/7")) == [("1/7/0", "ok", 0.25, "own")]


def test_large_group_is_read_in_part(tmp_path: Path) -> None:
    """A run without dataset rows is one large group."""
    count = MAX_SIBLINGS + 5
    rows = [trajectory(f"{n:x}", "x", rollout_n=n, sample_index=None) for n in range(1, count + 1)]
    found = in_table(engine(tmp_path, *rows), "1/-")
    assert (len(found.found), found.number) == (MAX_SIBLINGS, count)
    assert found.found[-1].name == f"1/-/{MAX_SIBLINGS}"


@pytest.mark.parametrize(
    ("text", "samples"),
    [("1/7", ["7"]), ("1/7/0", ["7/0", "7"]), ("1/7/-", ["7/-", "7"]), ("1/a/b", ["a/b"]), ("1/-", ["-"])],
)
def test_name_of_a_trajectory_names_its_group_too(text: str, samples: list[str]) -> None:
    """A dataset row may have a slash, and a trajectory may have no number."""
    for name, validate in ((text, False), (f"validation/{text}", True)):
        found = [each for each in names_in(name) if each.step == "1"]
        assert found == [GroupName(validate, "1", sample) for sample in samples]


def test_group_of_a_step_that_is_called_validation_is_found(tmp_path: Path) -> None:
    """By its name and by that of a trajectory, unless a validation has a group of this name."""
    step = {"step": None, "step_text": "validation"}
    own, other = trajectory("1", "own", **step), trajectory("2", "other", **step, sample_index="9/0")
    asked = engine(tmp_path, own, other, trajectory("3", "of 9", step=9, sample_index="0", validate=True))
    for name in ("validation/7", "validation/7/0"):
        assert told(in_table(asked, name)) == [("validation/7/0", "ok", None, "own")]
    assert told(in_table(asked, "validation/9/0")) == [("validation/9/0/0", "ok", None, "of 9")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7", "'7' does not name a group: write STEP/SAMPLE"),
        ("", "'' does not name a group"),
        ("3dc4978329c7", "'3dc4978329c7' does not name a group"),
        ("validation", "'validation' does not name a group"),
    ],
)
def test_text_that_names_no_group_is_refused_with_advice(text: str, message: str) -> None:
    """The message says how to write the name."""
    with pytest.raises(ViewerError) as caught:
        names_in(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(("text", "listing"), [("12/", "12"), ("validation/12/", "12 --validation")])
def test_step_in_place_of_a_group_is_refused_with_advice(tmp_path: Path, text: str, listing: str) -> None:
    """The message says how to list the step's groups."""
    with pytest.raises(ViewerError) as caught:
        in_table(engine(tmp_path, trajectory("1", "own")), text)
    advice = f"`otel-rollout groups --step {listing}` with the same --from lists its groups."
    assert str(caught.value) == f"{text} names a step, not a group: {advice}"


def test_group_of_an_empty_sample_index_can_be_named(tmp_path: Path) -> None:
    """As ``groups`` lists it, and by one of its trajectories."""
    asked = engine(tmp_path, trajectory("1", "own", sample_index="", rollout_n=3))
    for text in ("1/", "1//3"):
        assert told(in_table(asked, text)) == [("1//3", "ok", None, "own")]


def test_group_that_does_not_exist_is_reported_in_one_line(tmp_path: Path) -> None:
    """With the run, if one was given."""
    asked = engine(tmp_path, trajectory("1", "own"))
    for run, where in ((None, "in here"), (run_of(asked), "in first · run-1")):
        with pytest.raises(ViewerError) as caught:
            in_table(asked, "1/8", run, "here")
        assert str(caught.value).startswith(f"There is no group 1/8 {where}. `otel-rollout groups` with")
        assert "\n" not in str(caught.value)
