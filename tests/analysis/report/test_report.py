"""A report has the exact figures of a run, however odd the run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.look.analysis.health.findings import Finding, Health
from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.measures import MEASURES
from otel_rollout.look.analysis.report.page import page_of_report, page_of_step
from otel_rollout.look.analysis.report.report import PolicyLag, Reward, Seconds, StepReport, Tool, report_of
from otel_rollout.look.analysis.report.step import step_of
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table.select import QueryError
from tests.analysis.report.runs_for_reports import SECOND, engine_of, trajectory
from tests.table.tables import START_NS, root, row, score

_NO_REWARD = Reward(0, 1, 0, None, None, None, None, None, None, None)


def steps_of(tmp_path: Path, *rows: dict[str, Any]) -> tuple[StepReport, ...]:
    engine = engine_of(tmp_path, *rows)
    return report_of(engine, run_of(engine)).steps


_MIXED = Reward(
    4,
    1,
    0,
    0.5,
    math.sqrt(1 / 6),
    0.0,
    pytest.approx(0.15),
    0.5,
    pytest.approx(0.85),
    1.0,
    values={0.0: 1, 0.5: 2, 1.0: 1},
)


def test_a_trajectory_lasts_until_its_last_reward_function_has_ended(tmp_path: Path) -> None:
    """So its phases, and its longest and median time, are of one duration, as in the timeline."""
    lasting = {"start_ns": START_NS, "duration_ns": 4 * SECOND}
    judge = {"kind": "EVALUATOR", "start_ns": START_NS + 2 * SECOND, "duration_ns": 10 * SECOND, "step": 3}
    (step,) = steps_of(tmp_path, root("a", step=3, **lasting), row("a", "e", "aa", **judge))
    assert (step.seconds.max, step.seconds.p50, step.seconds.reward, step.seconds.waiting) == (12, 12, 10, 2)


def test_figures_of_a_step_are_exact(tmp_path: Path) -> None:
    """Two groups, one without spread; a failed tool call, a cut reply, a broken call, old weights."""
    of = {"step": 3, "sample_index": "5"}
    cut = row("a", "e1", "aa", start_ns=START_NS + 1002 * SECOND, duration_ns=SECOND, kind="LLM", tokens_in=7,
              tokens_out=1, finish_reason="stop, length", **of)  # fmt: skip
    name = "HermesToolParser.extract_tool_calls"
    broken = row("a", "e2", "aa", start_ns=START_NS + 1006 * SECOND, name=name, status="error", **of)
    found = steps_of(
        tmp_path,
        *trajectory(8, reward=1.0, tool_fails=True, step=3),
        *trajectory(9, reward=0.0, tool_fails=False, step=3),
        *trajectory(10, reward=0.5, step=3, duration_ns=20 * SECOND),
        cut,
        broken,
        *trajectory(11, reward=0.5, step=3),
        root("c", step=3, sample_index="6", status="error", error_type="ValueError", duration_ns=None)
        | {"policy_version_min": 1, "policy_version_max": 3},
    )
    assert found == (
        StepReport(
            step=3, validate=False, trajectories=5, failed=1, running=0, error_types={"ValueError": 1},
            groups=3, groups_compared=2, groups_without_spread=1,
            reward=_MIXED,
            turns_mean=1.0, turns_std=pytest.approx(0.5**0.5), turns_max=2, tokens_in=407, tokens_out=81,
            replies=5, replies_ended=5, replies_truncated=1, tool_calls=2,
            tool_calls_known=2, tool_calls_std=pytest.approx(0.3**0.5), tool_errors=1,
            tools=(Tool("browser", 2, 2, 1, {"TimeoutError": 1}, 2.0),), parse_failures=1,
            seconds=Seconds(4, 10.0, pytest.approx(18.5), 20.0, "3/5/0", 4.0, 1.0, 1.0, 6.5),
            policy_lag=PolicyLag(1, 2.0, 2, 1),
        ),
    )  # fmt: skip
    assert report_text.figures(found[0])["reward"] == "0.5 ± 0.408 (4 of 5)"


def test_validation_stands_apart(tmp_path: Path) -> None:
    """Steps of training and validation with one number are two."""
    engine = engine_of(
        tmp_path,
        *trajectory(1, reward=0.0, step=2),
        *trajectory(2, reward=1.0, step=2, validate=True),
        *trajectory(3, reward=1.0, step=1, validate=True),
    )
    report = report_of(engine, run_of(engine))
    assert [(step.name, step.reward.mean) for step in report.training] == [("2", 0.0)]
    assert [(step.name, step.reward.mean) for step in report.validation] == [
        ("validation/1", 1.0),
        ("validation/2", 1.0),
    ]


def test_run_without_rewards_has_the_other_figures(tmp_path: Path) -> None:
    """A missing reward is counted, and no group counts as one without spread."""
    (step,) = steps_of(tmp_path, *trajectory(2), *trajectory(3))
    assert step.reward == replace(_NO_REWARD, missing=2)
    assert (step.groups, step.groups_compared, step.groups_without_spread) == (1, 0, 0)
    assert step.seconds.p50 == 10.0


def test_running_trajectory_has_no_duration_and_misses_no_reward(tmp_path: Path) -> None:
    """A run that is being written has trajectories without a root."""
    (step,) = steps_of(tmp_path, *list(trajectory(2, tool_fails=False))[1:])
    assert (step.trajectories, step.running, step.tool_calls) == (1, 1, 1)
    assert step.reward == replace(_NO_REWARD, missing=0)
    assert step.seconds == Seconds(0, None, None, None, None, None, None, None, None)


def test_odd_rewards_are_counted_apart(tmp_path: Path) -> None:
    """NaN and infinity spoil neither the mean nor the JSON."""
    rewards = [math.nan, math.inf, -math.inf, 1.0]
    (step,) = steps_of(tmp_path, *(row for n, r in enumerate(rewards, 2) for row in trajectory(n, reward=r)))
    assert step.reward == Reward(1, 0, 3, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0, values={1.0: 1})
    share = MEASURES["reward_missing"].of(step)
    assert share is not None
    assert share.value == 0


@pytest.mark.parametrize("text", ["NaN", "-inf", "Infinity", "1e200"])
def test_odd_reward_that_is_a_text_counts_as_the_number(tmp_path: Path, text: str) -> None:
    """Writers of JSON quote such numbers in several ways."""
    said = (*trajectory(2), score("2", "e2", None, score_label=text, sample_index="1"))
    (step,) = steps_of(tmp_path, *said)
    assert step.reward == replace(_NO_REWARD, missing=0, odd=1)
    (group,) = engine_of(tmp_path / "groups", *said).dicts("SELECT rewarded, reward_mean FROM groups")
    assert group == {"rewarded": 0, "reward_mean": None}


def test_reward_that_is_a_text_is_not_missing(tmp_path: Path) -> None:
    """A reward is missing if none was given; `health` counts alike."""
    with_text = (*trajectory(2), score("2", "e2", None, score_label="good", sample_index="1"))
    (step,) = steps_of(tmp_path, *with_text, *trajectory(3))
    assert step.reward == replace(_NO_REWARD, missing=1)


def test_trajectories_without_a_step_come_last(tmp_path: Path) -> None:
    """A null step and a null dataset row have figures, and are no group."""
    found = steps_of(tmp_path, *trajectory(2, step=None, sample_index=None), *trajectory(3, step=5))
    assert [(step.step, step.name, step.groups) for step in found] == [(5, "5", 1), (None, "-", 0)]


def test_condition_chooses_steps(tmp_path: Path) -> None:
    """A condition on the step leaves the other steps out of every figure."""
    engine = engine_of(tmp_path, *(row for n in (1, 2, 3) for row in trajectory(n, tool_fails=True, step=n)))
    report = report_of(engine, run_of(engine), "step BETWEEN 2 AND 3")
    assert [(step.step, step.tool_errors, step.tools[0].calls) for step in report.steps] == [
        (2, 1, 1),
        (3, 1, 1),
    ]


def test_figures_are_json_with_the_run(tmp_path: Path) -> None:
    """The JSON has the run, and strict JSON values."""
    engine = engine_of(tmp_path, *trajectory(2, reward=math.nan, step=1, project=None, experiment=None))
    document = report_of(engine, run_of(engine)).as_json()
    assert json.loads(json.dumps(document, allow_nan=False))["training"][0]["reward"]["odd"] == 1
    assert [document[name] for name in ("run_id", "project", "experiment")] == ["run-1", None, None]


def test_step_has_its_groups_by_spread(tmp_path: Path) -> None:
    """The widest spread comes first; a trajectory without a dataset row is in no group."""
    rewards = {4: 0.5, 5: 0.5, 6: 0.0, 7: 1.0, 9: 1.0}
    engine = engine_of(
        tmp_path,
        *(row for n, reward in rewards.items() for row in trajectory(n, reward=reward, step=2)),
        *trajectory(20, sample_index=None, step=2),
        *trajectory(30, step=9),
    )
    step = step_of(engine, run_of(engine), 2)
    assert [(group.path, group.mean, group.spread, len(group.members)) for group in step.groups] == [
        ("2/3", 0.5, 1.0, 2),
        ("2/2", 0.5, 0.0, 2),
        ("2/4", 1.0, None, 1),
        (None, None, None, 1),
    ]
    assert (step.before, step.after, step.left_out) == (None, 9, 0)


def test_missing_step_is_named(tmp_path: Path) -> None:
    """A step that the run does not have ends with one sentence."""
    engine = engine_of(tmp_path, *trajectory(2, step=1))
    with pytest.raises(QueryError, match="first · run-1 has no validation step 1"):
        step_of(engine, run_of(engine), 1, validate=True)


def test_pages_show_hostile_names_as_text(tmp_path: Path) -> None:
    """Names of runs, tools, errors and rows cannot act in a page."""
    text = "<script>alert(1)</script>\x1b\u202e"
    spans = list(trajectory(2, reward=0.5, tool_fails=True, sample_index=text, experiment=text))
    spans[2] |= {"tool_name": text, "error_type": text}
    engine = engine_of(tmp_path, *spans)
    run = run_of(engine)
    for page in (page_of_report(report_of(engine, run)), page_of_step(step_of(engine, run, 1))):
        assert "&lt;script&gt;" in page
        assert "<script" not in page
        assert not set("\x1b\u202e") & set(page)


@pytest.mark.parametrize("is_known", [True, False])
def test_phases_are_drawn_where_all_are_known(tmp_path: Path, is_known: bool) -> None:
    """A page draws no part of a time as the whole, and no unknown time as none."""
    call = row("a", "c", "aa", kind="LLM", duration_ns=SECOND if is_known else None)
    engine = engine_of(tmp_path, root("a"), call)
    run = run_of(engine)
    for page in (page_of_report(report_of(engine, run)), page_of_step(step_of(engine, run, 1))):
        assert ("Mean time of a trajectory" in page) == is_known


def test_rewards_of_few_values_are_drawn_as_shares(tmp_path: Path) -> None:
    """A column has the share of each reward, and of none; its label has the mean."""
    spans = [span for n, reward in enumerate((1, 0, 1), 2) for span in trajectory(n, reward=reward)]
    engine = engine_of(tmp_path, *spans, *trajectory(7))
    page = page_of_report(report_of(engine, run_of(engine)))
    assert "<b>Rewards</b>" in page
    assert "step 1\n1: 50%\n0: 25%\nno number: 25%" in page
    assert ">1: 0.667<" in page
    assert ">p10<" not in page  # quantiles of two values say nothing


def test_rewards_of_many_values_are_drawn_as_a_curve(tmp_path: Path) -> None:
    """The mean has a band of quantiles."""
    spans = [span for n in range(2, 9) for span in trajectory(n, reward=n / 10)]
    engine = engine_of(tmp_path, *spans)
    report = report_of(engine, run_of(engine))
    assert report.steps[0].reward.values == {}
    page = page_of_report(report)
    assert "Reward, mean" in page
    assert ">p10<" in page


@pytest.mark.parametrize("identity", [{}, {"step": None}, {"validate": True}, {"sample_index": None}])
def test_page_of_one_trajectory_stands_alone(tmp_path: Path, identity: dict[str, Any]) -> None:
    """A run of one trajectory, without any figure, has a page without links."""
    engine = engine_of(tmp_path, *trajectory(2, **identity))
    run = run_of(engine)
    report = report_of(engine, run)
    step = report.steps[0]
    for page in (page_of_report(report), page_of_step(step_of(engine, run, step.step, step.validate))):
        assert "href=" not in page
        assert page.rstrip().endswith("</html>")


def test_number_does_not_depend_on_the_order_of_a_sum() -> None:
    """Means that differ in their last digits only are printed alike."""
    assert report_text.number(0.5474999999999999) == report_text.number(0.5475000000000001)


def test_code_in_a_finding_is_code_on_the_run_page(tmp_path: Path) -> None:
    """A name between backticks is shown as on the page of health, and nothing else becomes markup."""
    engine = engine_of(tmp_path, *trajectory(2, step=1))
    finding = Finding("unhealthy", "The tool `a<b>` fails & more.")
    report = report_of(engine, run_of(engine))
    page = page_of_report(report, health=Health(report.run, 1, (finding,)))
    assert "The tool <code>a&lt;b&gt;</code> fails &amp; more. <code>otel-rollout health</code></p>" in page


def test_run_page_tells_a_rise_that_is_too_small_for_a_verdict(tmp_path: Path) -> None:
    """It does not say that nothing is wrong beside it."""
    engine = engine_of(tmp_path, *trajectory(2, step=1))
    report = report_of(engine, run_of(engine))
    nothing = Finding("unobserved", "No reward.")
    rise = Finding("unobserved", "It failed more often.", evidence=("1/2/0",))
    assert "It failed more often. <code>" in page_of_report(
        report, health=Health(report.run, 1, (nothing, rise))
    )
    page = page_of_report(report, health=Health(report.run, 1, (nothing,)))
    assert "No check finds anything wrong" in page
