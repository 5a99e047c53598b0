"""The time of hand-made steps is exact, and odd ones have figures too."""

from __future__ import annotations

import dataclasses

import pytest

from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.look.analysis.timeline import text as timeline_text
from otel_rollout.look.analysis.timeline.page import as_json, page_of_timeline
from otel_rollout.look.analysis.timeline.step_time import PhaseTime
from otel_rollout.look.analysis.timeline.stragglers import HeldTime
from otel_rollout.look.analysis.timeline.timeline import WorkerTime, slowest_timeline
from otel_rollout.table.select import QueryError
from tests.analysis.timeline.steps import SECOND, at, call, engine_of, process, slowest, timed, trajectory
from tests.table.tables import row, score

_UNTIMED = {"start_time": None, "start_ns": 7, "duration_ns": 0}
"""Columns of a span of a dump that does not say when it ran."""
_NOT_SAID = "its source does not say when a call ran."


def phases(found):
    return {time.phase: round(time.seconds, 6) for time in found.phases}


def lanes(found):
    return [(lane.name.path, lane.state, round(lane.seconds, 6)) for lane in found.lanes]


def test_step_is_divided_into_phases(tmp_path):
    """Busy time is summed over trajectories; wall time counts an instant once."""
    found = timed(
        tmp_path,
        *trajectory(0, 0, 10, call("LLM", 1, 5), call("TOOL", 5, 8, "browser"), call("EVALUATOR", 8, 9)),
        *trajectory(1, 0, 10, call("LLM", 3, 7), call("TOOL", 7, 8, "python")),
    )
    assert found.wall_seconds == 10
    assert (found.peak, found.mean_running, found.running, found.failed) == (2, 2.0, 0, 0)
    assert found.phases == (
        PhaseTime("generate", "", 8.0, 0.4, 0.8, 6.0, 0.6),
        PhaseTime("tool", "", 4.0, 0.2, 0.4, 3.0, 0.3),
        PhaseTime("reward", "", 1.0, 0.05, 0.1, 1.0, 0.1),
        PhaseTime("waiting", "", 7.0, 0.35, 0.7, 5.0, 0.5),
    )
    assert found.tools == (
        PhaseTime("tool", "browser", 3.0, 0.15, 0.3, 3.0, 0.3),
        PhaseTime("tool", "python", 1.0, 0.05, 0.1, 1.0, 0.1),
    )
    assert timeline_text.summary(found) == "2 trajectories in 10.00 s: 2.0 at once on average, 2 at most."


def test_concurrency_is_known_over_the_wall_time(tmp_path):
    """One trajectory runs in the first half, two in the second; the parts add up to the busy time."""
    found = timed(tmp_path, *trajectory(0, 0, 60), *trajectory(1, 30, 60))
    assert [moment.running for moment in found.moments] == pytest.approx([1.0] * 30 + [2.0] * 30)
    assert sum(moment.running for moment in found.moments) == pytest.approx(90)
    assert found.peak == 2


def test_stragglers_and_what_they_did(tmp_path):
    """Three of twelve hold the step; the parts of the held time add up to it."""
    usual = [each for number in range(9) for each in trajectory(number, 0, 10 + number / 10)]
    slow = [
        *trajectory(9, 0, 30, call("TOOL", 2, 28, "browser")),
        *trajectory(10, 0, 40, call("TOOL", 2, 40, "browser")),
        *trajectory(11, 0, 50.8, call("TOOL", 2, 40, "browser"), call("LLM", 41, 50.8)),
    ]
    found = timed(tmp_path, *usual, *slow)
    held = found.stragglers
    assert [lane.name.path for lane in held.lanes] == ["12/1/3", "12/1/2", "12/1/1"]
    assert (held.of, held.since, held.seconds, held.running) == (12, at(10.8), 40.0, 0)
    # 10.8 to 30: three run; to 40: two; then one. The first of them waits from 28 to 30.
    browser = 17.2 + 2 * 2 / 3 + 10
    assert [(part.phase, part.name) for part in held.parts] == [
        ("tool", "browser"),
        ("generate", ""),
        ("waiting", ""),
    ]
    assert [part.seconds for part in held.parts] == pytest.approx([browser, 9.8, 2 / 3 + 1])
    assert timeline_text.straggling(found) == (
        "The slowest 3 of 12 held the step for 40.00 s: 28.53 s in tool `browser`, 9.80 s in model calls, "
        "1.67 s outside of any call."
    )


def test_slowest_of_512_are_found(tmp_path):
    """The number of stragglers follows from their ends, not from the size of the step."""
    usual = [each for number in range(509) for each in trajectory(number, 0, 50 + number / 50)]
    slow = [each for number in range(509, 512) for each in trajectory(number, 0, number - 409.0)]
    found = timed(tmp_path, *usual, *slow)
    assert len(found.stragglers.lanes) == 3
    assert found.stragglers.seconds == pytest.approx(102 - 60.16)


@pytest.mark.parametrize(
    "ends",
    [
        [(0, 50 + number / 100) for number in range(40)],  # all end at about one time
        [(number, number + 5) for number in range(40)],  # new ones start until the end
        [(0, 10), (10, 20)],  # one after another
        [(0, 10)],
        [(0, 10)] * 8,
        [(0, 0)] * 3,
    ],
)
def test_step_that_ends_evenly_has_no_stragglers(tmp_path, ends):
    """Nobody waited for a few trajectories, or those had not started."""
    rows = [each for number, (start, end) in enumerate(ends) for each in trajectory(number, start, end)]
    found = timed(tmp_path, *rows)
    assert found.stragglers is None
    assert timeline_text.straggling(found)


def test_longest_trajectory_is_named_where_nobody_straggled(tmp_path):
    """A step that waits for one trajectory of each process has no straggler, and still a longest one."""
    ends = [1, 1, 1, 1, 40, 41]
    rows = [each for number, end in enumerate(ends) for each in trajectory(number, 0, end)]
    told = timeline_text.straggling(timed(tmp_path, *rows, *trajectory(6, 39, 45)))
    assert told.endswith("The longest is 12/0/5: 41.00 s.")


def test_end_in_which_few_of_one_process_ran_is_told(tmp_path):
    """Eight that ran one after another in one process are no stragglers, but their process is named."""
    quick = [trajectory(n, 0, 10, resource=process(1)) for n in range(110)]
    slow = [trajectory(110 + n, 5 * n, 5 * n + 5, resource=process(2)) for n in range(2, 10)]
    found = timed(tmp_path, *(row for rows in (*quick, *slow) for row in rows))
    assert found.stragglers is None
    sentence = "For the last 40.00 s of 50.00 s, only 8 of 118 trajectories ran, all of pid 2."
    assert timeline_text.straggling(found) == sentence


def test_pause_before_a_late_trajectory_is_no_time_in_which_it_ran(tmp_path):
    """The end begins with the trajectory, not with the end of the others."""
    quick = [row for number in range(4) for row in trajectory(number, 0, 10)]
    told = timeline_text.straggling(timed(tmp_path, *quick, *trajectory(4, 100, 150)))
    assert told.startswith("For the last 50.00 s of 2 min 30 s, only 1 of 5 trajectories ran.")


def test_slow_worker_is_named(tmp_path):
    """A process whose model calls take twice as long is slower than its peers; one of few calls is not."""
    rows = []
    for number in range(24):
        seconds = 2.0 if number % 4 == 3 else 1.0
        calls = [
            call("LLM", turn * 3, turn * 3 + seconds + number / 1000, resource=process(number % 4))
            for turn in range(3)
        ]
        rows += trajectory(number, 0, 10, *calls, resource=process(number % 4, f"node-{number % 2}"))
    rows += trajectory(24, 0, 10, call("LLM", 0, 9, resource=process(9)), resource=process(9))
    found = timed(tmp_path, *rows)
    assert [timeline_text.slow(found, worker) for worker in found.slow_workers] == [
        "pid 3 is slower than its peers in model calls: 2.01 s there, 1.01 s elsewhere "
        "(medians of 18 and 55)."
    ]
    assert found.workers[0] == WorkerTime("pid 0 on node-0", "node-0", 6, 10.0, 10.0)
    assert [worker.name for worker in found.workers] == [
        "pid 0 on node-0", "pid 1 on node-1", "pid 2 on node-0", "pid 3 on node-1", "pid 9"
    ]  # fmt: skip


@pytest.mark.parametrize("resource", [None, "{}", "[]", "no JSON", '{"service.name": "training"}'])
def test_step_without_known_processes(tmp_path, resource):
    """A resource that names no process is no process."""
    found = timed(tmp_path, *trajectory(0, 0, 10, call("LLM", 1, 5), resource=resource))
    assert (found.workers, found.slow_workers, found.lanes[0].worker) == ((), (), None)
    assert list(timeline_text.notes(found)) == ["No process is known: the spans' resource names none."]


def test_processes_with_one_pid_are_told_apart(tmp_path):
    """Two machines without a name may use one pid."""
    digits = (
        '{"rollout.segment.id": "7-aaaaaaaaaaaaaaaa.000001"}',
        '{"rollout.segment.id": "7-bbbbbbbbbbbbbbbb.000009"}',
    )
    rows = [each for number in (0, 1) for each in trajectory(number, 0, 10 + number, resource=digits[number])]
    found = timed(tmp_path, *rows)
    assert [worker.name for worker in found.workers] == ["pid 7 (bbbbbb)", "pid 7 (aaaaaa)"]


def test_running_trajectory_lasts_until_the_newest_span(tmp_path):
    """What it does after its last recorded span is not recorded."""
    running = trajectory(1, 0, 99, call("LLM", 2, 4))[1:]
    found = timed(tmp_path, *trajectory(0, 0, 10, call("LLM", 0, 10)), *running)
    assert lanes(found) == [("12/0/0", "ok", 10.0), ("12/0/1", "running", 8.0)]
    assert phases(found) == {"generate": 12.0, "unrecorded": 6.0}
    assert next(timeline_text.notes(found)).startswith("1 of 2 trajectories still runs, or lost its root")


def test_running_stragglers_are_said_to_run(tmp_path):
    """The step is not over: they have held it so far."""
    ended = [each for number in range(11) for each in trajectory(number, 0, 10)]
    running = trajectory(11, 0, 99, call("TOOL", 1, 30, "browser"))[1:]
    found = timed(tmp_path, *ended, *running)
    assert timeline_text.straggling(found) == (
        "The slowest of 12 has held the step for 20.00 s so far (it still runs): 20.00 s in tool `browser`."
    )


def test_odd_durations_do_not_break_it(tmp_path):
    """Null and negative durations, a root without one, and calls outside of it because clocks differ."""
    rows = [
        *trajectory(
            0,
            0,
            10,
            call("LLM", -3, 2),
            call("TOOL", 8, 14, "late"),
            call("TOOL", 3, 4, "x", duration_ns=None),
        ),
        *trajectory(1, 0, 10, call("LLM", 2, 6), duration_ns=None),
        *trajectory(2, 0, 10, call("LLM", 5, 1), duration_ns=-5),
    ]
    found = timed(tmp_path, *rows)
    assert lanes(found) == [("12/0/0", "ok", 10.0), ("12/0/1", "ok", 6.0), ("12/0/2", "ok", 0.0)]
    assert phases(found) == {"generate": 6.0, "tool": 2.0, "waiting": 2.0, "unrecorded": 6.0}
    assert found.outside == 3


def test_reward_after_the_end_belongs_to_the_trajectory(tmp_path):
    """The step waits for reward functions, but not for a score that is given afterwards."""
    rows = trajectory(0, 0, 10, call("EVALUATOR", 12, 15, "compute_score"))
    late = score(
        "0", "e", 1.0, step=12, sample_index="0", kind="EVALUATOR", start_ns=at(900), score_origin="outside"
    )
    instant = score(
        "0", "f", 1.0, step=12, sample_index="0", kind="EVALUATOR", start_ns=at(800), duration_ns=0
    )
    found = timed(tmp_path, *rows, late, instant)
    assert lanes(found) == [("12/0/0", "ok", 15.0)]
    assert phases(found) == {"reward": 3.0, "waiting": 12.0}


def test_span_that_was_delivered_twice_counts_once(tmp_path):
    """A lost ledger doubles rows."""
    rows = trajectory(0, 0, 10, call("LLM", 1, 5))
    rewritten = [{**row, "duration_ns": row["duration_ns"] + SECOND} for row in rows if row["kind"] == "LLM"]
    found = timed(tmp_path, *rows, *rows, *rewritten)
    assert len(found.lanes[0].spans) == 2
    assert phases(found) == {"generate": 5.0, "waiting": 5.0}, "the latest end counts"


def test_spans_of_other_libraries_without_identity_count(tmp_path):
    """Their step is null; their trace is the trajectory's."""
    foreign = call(
        "TOOL", 2, 5, "search", step=None, validate=None, project=None, experiment=None, run_id=None
    )
    found = timed(tmp_path, *trajectory(0, 0, 10, foreign))
    assert phases(found) == {"tool": 3.0, "waiting": 7.0}


def test_tool_server_with_a_run_of_its_own_counts(tmp_path):
    """A server that was started apart records the trajectory's identity and another run's id."""
    found = timed(tmp_path, *trajectory(0, 0, 10, call("TOOL", 2, 5, "search", run_id="server")))
    assert phases(found) == {"tool": 3.0, "waiting": 7.0}


def test_part_of_a_trajectory_of_another_step_is_none_of_this_step(tmp_path):
    """A trajectory inside another one may name another step; its trace belongs to the root's."""
    inner = call("AGENT", 2, 5, "inner", step=12)
    rows = trajectory(0, 0, 10, inner, step=11)
    found = timed(tmp_path, *rows, *trajectory(1, 0, 4))
    assert lanes(found) == [("12/0/1", "ok", 4.0)]


@pytest.mark.parametrize("inner", [{"step": None}, {"step": 13}, {"validate": False}])
@pytest.mark.parametrize("is_running", [False, True])
def test_what_a_sub_trajectory_of_another_step_does_counts(tmp_path, inner, is_running):
    """Also while the trajectory around it runs, and long after the step itself recorded anything."""
    rows = trajectory(0, 0, 10, call("LLM", 0, 1), call("TOOL", 4, 8, **inner), validate=True)
    found = timed(tmp_path, *rows[is_running:], validate=True)
    assert [(lane.name.path, lane.state) for lane in found.lanes] == [
        ("validation/12/0/0", "running" if is_running else "ok")
    ]
    assert phases(found) == {"generate": 1.0, "tool": 4.0, "waiting": 3.0 if is_running else 5.0}


@pytest.mark.parametrize(("others", "unrecorded"), [([], {}), (trajectory(1, 0, 20), {"unrecorded": 15.0})])
def test_running_trajectory_that_has_only_a_score_in_its_own_step_counts(tmp_path, others, unrecorded):
    """What its sub-trajectory of another step did is its time, as in `phases`, alone in the step or not."""
    inner = {"step": 9, "rollout_n": 101}
    rows = [
        row("0", "b", "a0", **inner, **call("AGENT", 1, 5)),
        row("0", "c", "b", **inner, **call("LLM", 2, 4)),
        score("0", "e", 1.0, step=12, start_ns=at(5), duration_ns=0),
    ]
    found = timed(tmp_path, *rows, *others)
    assert lanes(found)[-1] == ("12/7/0", "running", 19.0 if others else 4.0)
    spent = as_json(found)["lanes"][-1]["phases"]
    assert spent == {"generate": 2.0, "waiting": 2.0, **unrecorded}


def test_calls_of_other_libraries_count_long_after_the_step_itself_recorded_anything(tmp_path):
    """The trajectory around them runs."""
    nobody = dict.fromkeys(("step", "validate", "project", "experiment", "run_id"))
    rows = trajectory(0, 0, 10, call("LLM", 0, 1), call("TOOL", 4, 8, "search", **nobody))
    assert phases(timed(tmp_path, *rows[1:])) == {"generate": 1.0, "waiting": 3.0, "tool": 4.0}


def test_trajectories_without_times_are_counted(tmp_path):
    """No figure counts them, even if one has a call with a time; terminal, page and JSON say how many."""
    rows = [
        *trajectory(0, 0, 10, step=1),
        *trajectory(1, 0, 5, step=2),
        *trajectory(2, 0, 0, call("LLM", 0, 90), step=2, **_UNTIMED),
        *trajectory(3, 0, 0, step=2, **_UNTIMED),
    ]
    found = timed(tmp_path / "a", *rows, step=2)
    assert (lanes(found), found.wall_seconds, found.untimed) == ([("2/0/1", "ok", 5.0)], 5.0, 2)
    assert (as_json(found)["trajectories"], as_json(found)["untimed"]) == (1, 2)
    said = "The times of 2 of 3 trajectories are unknown: no figure counts them."
    assert said in as_json(found)["notes"]
    assert said in page_of_timeline(found)
    assert (slowest(tmp_path / "b", *rows).step, slowest(tmp_path / "c", *rows).untimed) == (1, 0)


@pytest.mark.parametrize(("step", "name"), [(3, "step 3"), (None, "trajectories without a step")])
def test_step_without_times_has_no_timeline(tmp_path, step, name):
    """One sentence says so; the step is among those of the run."""
    rows = [*trajectory(0, 0, 10, step=1), *trajectory(1, 0, 0, step=step, **_UNTIMED)]
    with pytest.raises(
        QueryError, match=rf"^Run \S+ · run-1 has no timeline of {name} of training: {_NOT_SAID}$"
    ):
        timed(tmp_path / "a", *rows, step=step)
    with pytest.raises(QueryError, match=rf"^Run \S+ · run-1 has no timeline of validation: {_NOT_SAID}$"):
        slowest(tmp_path / "b", rows[0], rows[1] | {"validate": True}, validate=True)
    with pytest.raises(QueryError, match=rf"^Run \S+ · run-1 has no timeline: {_NOT_SAID}$"):
        slowest(tmp_path / "c", rows[1])


def test_trajectory_inside_another_systems_trace_has_ended(tmp_path):
    """The parent of its first agent's span never arrives."""
    outer = row("5", "b", "ff", kind="AGENT", step=12, start_ns=at(0), duration_ns=3 * 10**9)
    assert lanes(timed(tmp_path, outer)) == [("12/7/0", "ok", 3.0)]


def test_trajectories_with_one_path_have_different_names(tmp_path):
    """A trajectory that was tried again has the path of the first attempt."""
    again = [{**each, "rollout_n": 0} for each in trajectory(1, 0, 12)]
    found = timed(tmp_path, *trajectory(0, 0, 10), *again)
    assert [lane.name.path for lane in found.lanes] == ["12/0/0 (00000000)", "12/0/0 (00000000)"]
    assert [lane.name.reference for lane in found.lanes] == [lane.trace_id for lane in found.lanes]


def test_steps_are_told_apart_by_validation_and_run(tmp_path):
    """Validation has steps of the same number; so has another run."""
    rows = [
        *trajectory(0, 0, 10),
        *trajectory(1, 0, 20, validate=True),
        *trajectory(2, -5, 30, run_id="run-0"),
    ]
    newest = [*trajectory(3, 40, 41)]
    assert lanes(timed(tmp_path / "a", *rows, *newest)) == [("12/0/0", "ok", 10.0), ("12/0/3", "ok", 1.0)]
    assert lanes(timed(tmp_path / "b", *rows, validate=True)) == [("validation/12/0/1", "ok", 20.0)]


def test_trajectories_without_a_step(tmp_path):
    """Their step is null, and the path has a dash; nothing else of the run is null."""
    found = timed(tmp_path, *trajectory(0, 0, 10, call("LLM", 1, 4), step=None, project=None), step=None)
    assert lanes(found) == [("-/0/0", "ok", 10.0)]
    assert timeline_text.title(found) == "Trajectories without a step"


def test_run_without_names(tmp_path):
    """A run whose id, project and experiment are null has steps too."""
    rows = [{**each, "run_id": None, "project": None, "experiment": None} for each in trajectory(0, 0, 10)]
    assert lanes(timed(tmp_path, *rows)) == [("12/0/0", "ok", 10.0)]


def test_slowest_step_is_the_default(tmp_path):
    """Training counts, unless a run has only validation; a score that came later makes no step slow."""
    rows = [
        *trajectory(0, 0, 10, step=1),
        *trajectory(1, 20, 40, step=2),
        *trajectory(2, 50, 60, step=3),
        score("0", "e", 1.0, step=1, start_ns=at(9000), score_origin="outside"),
        *trajectory(3, 70, 170, step=3, validate=True),
    ]
    found = slowest(tmp_path / "a", *rows)
    assert (found.step, found.validate, found.is_slowest, found.wall_seconds) == (2, False, True, 20.0)
    assert slowest(tmp_path / "b", *rows, validate=True).validate
    assert slowest(tmp_path / "c", *rows[-1:]).validate
    with pytest.raises(QueryError, match="has no step of validation"):
        slowest(tmp_path / "d", *rows[:1], validate=True)


@pytest.mark.parametrize(
    ("step", "validate", "message"),
    [
        (9, False, "Run first · run-1 has no step 9 of training. It has steps 1–3; name one of them."),
        (
            4,
            False,
            "Run first · run-1 has no step 4 of training. There is one of validation: add --validation.",
        ),
        (
            3,
            True,
            "Run first · run-1 has no step 3 of validation. There is one of training: "
            "leave out --validation.",
        ),
        (9, True, "Run first · run-1 has no step 9 of validation. It has step 4."),
        (
            None,
            False,
            "Run first · run-1 has no trajectories without a step of training. "
            "It has steps 1–3; name one of them.",
        ),
    ],
)
def test_missing_step_is_one_sentence(tmp_path, step, validate, message):
    """It names what the run has."""
    rows = [each for number in (1, 2, 3) for each in trajectory(number, number, number + 1, step=number)]
    rows += trajectory(4, 4, 5, step=4, validate=True)
    with pytest.raises(QueryError) as error:
        timed(tmp_path, *rows, step=step, validate=validate)
    assert str(error.value) == message


def test_step_that_only_spans_outside_of_trajectories_name_is_not_known(tmp_path):
    """It is not among the steps of the run: no trajectory has it."""
    nobody = dict.fromkeys(("step", "sample_index", "rollout_n", "validate"))
    outside = [row("f", "af", **nobody), row("f", "b", "af", step=2)]
    outside += [row("g", "a7", **nobody), row("g", "b7", "a7", step=7)]
    with pytest.raises(QueryError, match=r"has no step 2 of training\. It has step 1\.$"):
        timed(tmp_path, *trajectory(1, 1, 2, step=1), *outside, step=2)


def test_ten_thousand_spans_in_one_trace(tmp_path):
    """The figures are exact, and the calls are not compared with one another."""
    calls = [call("LLM" if number % 2 else "TOOL", number, number + 1, "t") for number in range(10_000)]
    found = timed(tmp_path, *trajectory(0, 0, 10_000, *calls))
    assert phases(found) == {"generate": 5_000.0, "tool": 5_000.0}


def test_json_has_every_figure(tmp_path):
    """Its values are plain, and the trajectories' phases add up to their durations."""
    rows = [each for number in range(11) for each in trajectory(number, 0, 10, call("LLM", 1, 5))]
    found = timed(
        tmp_path, *rows, *trajectory(11, 0, 30, call("TOOL", 1, 30, "browser"), resource=process(5, "n"))
    )
    values = as_json(found)
    assert values["stragglers"] == {
        "trajectories": ["12/1/3"],
        "of": 12,
        "running": 0,
        "since_seconds": 10.0,
        "seconds": 20.0,
        "parts": [dataclasses.asdict(HeldTime("tool", "browser", 20.0))],
        "message": "The slowest of 12 held the step for 20.00 s: 20.00 s in tool `browser`.",
    }
    assert values["lanes"][-1] == {
        "path": "12/1/3",
        "trace_id": "b".rjust(32, "0"),
        "state": "ok",
        "start_seconds": 0.0,
        "seconds": 30.0,
        "phases": {"waiting": 1.0, "tool": 29.0},
        "engine": {},
        "worker": "pid 5 on n",
    }
    assert all(sum(lane["phases"].values()) == lane["seconds"] for lane in values["lanes"])


def test_step_without_trajectories_of_the_newest_run(tmp_path):
    """A table without a trajectory has no run."""
    engine = engine_of(tmp_path, row("1", "b", kind="TOOL", validate=None, is_root=False))
    with pytest.raises(QueryError, match="no trajectory yet"):
        slowest_timeline(engine, run_of(engine))


def test_slowest_step_is_chosen_by_the_time_of_its_trajectories(tmp_path):
    """A sub-trajectory that names another step lengthens neither, nor does a call that outlives its root."""
    inner = call("TOOL", 5, 25, step=9)
    rows = [
        *trajectory(0, 0, 30, inner, step=8),
        *trajectory(1, 10, 20, step=9),
        *trajectory(2, 0, 2, call("TOOL", 1, 90), step=10),
        *trajectory(3, 15, 21, step=9),
    ]
    found = slowest(tmp_path, *rows)
    assert (found.step, found.wall_seconds) == (8, 30)
