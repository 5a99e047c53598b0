"""Sampling by group: the group's name alone decides, alike in every process."""

from __future__ import annotations

import enum
import json
import logging
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score, settings, settings_reader
from otel_rollout.base import semconv
from otel_rollout.otlp.groups import Group, group_hash
from otel_rollout.record import runtime
from otel_rollout.record.propagation import carrier
from otel_rollout.record.recording.sampling import GroupSampling, with_chosen
from tests.spool_reader import Recorded, tree

ROWS = range(200)


def group(row: Any, step: Any = 1, validate: bool = False, experiment: str = "e") -> Group:
    return Group(experiment, step, row, validate)


def sampling(**given: Any) -> GroupSampling:
    """Return the sampling of settings, which are given without ``sample_``."""
    return GroupSampling(settings.Settings(**{f"sample_{name}": value for name, value in given.items()}))


def taken(sampler: GroupSampling, step: Any = 1, validate: bool = False, experiment: str = "e") -> set[Any]:
    return {row for row in ROWS if sampler.takes(group(row, step, validate, experiment), Context())}


def test_rate_is_a_share_of_groups() -> None:
    """Another step, experiment or seed makes another choice.

    A higher rate adds groups to a lower one's.
    """
    tenth, half = taken(sampling(rate=0.1)), taken(sampling(rate=0.5))
    assert 8 <= len(tenth) <= 35
    assert 75 <= len(half) <= 125
    assert tenth < half
    others = (
        taken(sampling(rate=0.5), step=2),
        taken(sampling(rate=0.5), experiment="f"),
        taken(sampling(rate=0.5, seed="x")),
    )
    assert all(75 <= len(other) <= 125 and other != half for other in others)
    assert taken(sampling(rate=0.0)) == set()


def test_every_kth_step_is_recorded() -> None:
    """Steps that are no numbers are all recorded."""
    sampler = sampling(every=5)
    assert [step for step in range(1, 21) if taken(sampler, step)] == [5, 10, 15, 20]
    assert taken(sampler, "warm-up") == set(ROWS)


@pytest.mark.parametrize(("validation", "expected"), [("always", 200), ("never", 0)])
def test_validation_has_its_own_rule(validation: str, expected: int) -> None:
    """Validation is recorded always or never, whatever the rule for training."""
    sampler = sampling(rate=0.1, every=7, validation=validation, groups=2)
    assert len(taken(sampler, step=3, validate=True)) == expected
    assert taken(sampler, step=3) == set()
    chosen = sampler.chosen(group(row, 3, True) for row in ROWS)
    assert chosen is not None
    assert len(chosen) == expected


def test_limit_is_exact_where_the_whole_step_is_known() -> None:
    """The limit is exact among the groups that the rate chooses."""
    step = [group(row) for row in ROWS for _ in range(4)]
    chosen = sampling(groups=7).chosen(step)
    assert chosen is not None
    assert len(chosen) == 7
    assert chosen == sampling(groups=7).chosen(reversed(step))
    for rate in (0.2, 0.01):
        sampler = sampling(groups=7, rate=rate)
        rows = sampler.chosen(step)
        limited = {row for row in ROWS if sampler.takes(group(row), with_chosen(rows, Context()))}
        by_rate = taken(sampling(rate=rate))
        assert limited <= by_rate
        assert len(limited) == min(7, len(by_rate))
    assert sampling(rate=0.5).chosen(step) is None


def test_limit_where_no_process_sees_a_whole_step_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Everything is recorded, and the warning names the variable that has an effect."""
    assert taken(sampling(groups=3)) == set(ROWS)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "OTEL_ROLLOUT_SAMPLE_RATE" in warning


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())


@given(SCALARS, SCALARS, SCALARS, st.text(), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 9))
def test_any_identity_has_a_stable_number(
    step: Any, row: Any, validate: Any, seed: str, rate: float, most: int
) -> None:
    """The group of a trajectory with any identity has one number from 0 to 1."""
    name = Group("e", step, row, validate)
    assert 0 <= group_hash(name, seed) == group_hash(name, seed) < 1
    sampler = sampling(rate=rate, every=2, groups=most, seed=seed)
    assert sampler.takes(name, with_chosen(sampler.chosen([name]), Context())) in (True, False)


class Step(enum.IntEnum):
    """A step as some programs name it."""

    WARM_UP = 7


class Row(str, enum.Enum):  # noqa: UP042 - its text is "Row.NAME", unlike a StrEnum's
    """A row as some programs name it."""

    FIRST = "first"


SEVENS = [7, 7.0, np.int64(7), np.int8(7), np.float64(7), np.float32(7), np.array(7), Step.WARM_UP]


@pytest.mark.parametrize("seven", [*SEVENS, "7", np.str_("7")], ids=repr)
def test_whole_number_is_one_name_in_any_spelling(seven: Any) -> None:
    """Sampling, multiples of a step and verdicts read all of these as 7."""
    expected = Group.named("e", 7, 7, False)
    assert repr(Group.named("e", seven, seven, False)) == repr(expected)
    for every in (2, 7):
        sampler = sampling(every=every)
        assert sampler.takes(Group.named("e", seven, 1, False), Context()) is (every == 7)
    chosen = sampling(groups=1).chosen([Group.named("e", 1, seven, False)])
    context = carrier.extract(carrier.inject() or {})
    assert sampling(groups=1).takes(Group.named("e", 1, 7, False), with_chosen(chosen, context))
    attributes = {semconv.EXPERIMENT_NAME: "e", semconv.STEP: seven, semconv.SAMPLE_INDEX: seven}
    assert repr(Group.of(attributes)) == repr(expected)


@pytest.mark.parametrize("other", [True, "07", "7.0", "+7", 7.5, -7, 7e22, "seven", None], ids=repr)
def test_other_names_are_other_groups(other: Any) -> None:
    """Text that only resembles a number, a bool, or a fraction is another name."""
    assert group_hash(Group.named("e", other, 1, False)) != group_hash(Group.named("e", 7, 1, False))
    assert group_hash(Group.named("e", True, 1, False)) != group_hash(Group.named("e", 1, 1, False))


def test_identity_is_recorded_as_builtin_types(recorded: Callable[[], list[Recorded]]) -> None:
    """A whole number of any type is an integer; text stays text; validation is a bool."""
    for number, seven in enumerate(SEVENS):
        with rollout_trace_attr(
            step=seven, sample_index=Row.FIRST, rollout_n=number, validate=np.bool_(True)
        ):
            pass
    with rollout_trace_attr(step="7", sample_index=0.5, rollout_n=1e22, validate=None):  # type: ignore[arg-type]
        pass
    names = (semconv.STEP, semconv.SAMPLE_INDEX, semconv.VALIDATE)
    found = [[span.attributes[name] for name in names] for span in recorded()]
    assert repr(found) == repr([[7, "first", True]] * len(SEVENS) + [["7", 0.5, False]])


def test_training_generator_is_not_used() -> None:
    """Trajectories of no group are sampled one by one, by our own generator."""
    before = random.getstate()
    count = sum(sampling(rate=0.5).takes(group(None), Context()) for _ in range(1000))
    assert 400 < count < 600
    assert random.getstate() == before


def run_job(**variables: str) -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.recording.programs.sampled_job"],
        env={**os.environ, "OTEL_TRACES_EXPORTER": "spool", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def test_every_process_decides_alike(tmp_path: Path) -> None:
    """Processes with equal experiment and seed record equal, whole groups."""
    variables = {
        "OTEL_ROLLOUT_EXPERIMENT": "e",
        "OTEL_ROLLOUT_SAMPLE_RATE": "0.3",
        "OTEL_ROLLOUT_SAMPLE_EVERY": "2",
    }
    first, left_out, started = run_job(PYTHONHASHSEED="1", **variables)
    second, _, _ = run_job(PYTHONHASHSEED="2", OTEL_ROLLOUT_NODE="another", **variables)
    assert first == second
    assert {step for step, _, _ in first} == {0, 2}
    assert all([step, row, 1 - sibling] in first for step, row, sibling in first)
    assert 20 < len(first) < 80
    assert left_out == {"sampled_out": 320 - len(first)}
    assert started == 2 * len(first)
    other_seed, _, _ = run_job(OTEL_ROLLOUT_SAMPLE_SEED="7", **variables)
    assert first != other_seed


def test_sampled_out_trajectory_is_silent_and_its_scores_are_counted(
    fresh_process: None, test_exporters: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No span is started, in sub-trajectories either.

    The id says so, and a score of it is no error.
    """
    otel_rollout.configure("spool", sample_rate=0.0, shutdown_timeout=1)
    op = rollout_trace_op(lambda: otel_rollout.score("reward", 1))
    with rollout_trace_attr(step=1, sample_index=1) as trajectory:
        op()
        with rollout_trace_attr(step=1, sample_index=2):
            op()
        sent = carrier.inject()
        assert sent is not None
        assert sent.keys() == {"traceparent"}
        assert sent["traceparent"].endswith("-00")
    assert trajectory.trace_id is None
    assert trajectory.id is not None
    assert trajectory.id.endswith("-00")
    score("reward", 1.0, trajectory=trajectory.id)
    report = otel_rollout.shutdown(1)
    assert (report.started, report.sampled_out) == (0, {"sampled_out": 1, "score_of_unrecorded": 1})
    assert "left out on purpose: 1 sampled_out, 1 score_of_unrecorded" in report.summary()


def test_groups_are_sampled_below_an_operation(recorded: Callable[[], list[Recorded]]) -> None:
    """A sub-trajectory is recorded if and only if the enclosing trajectory is."""
    active = runtime.current()
    assert active is not None
    active.sampling = sampling(rate=0.5)

    @rollout_trace_op(name="train step")
    def train() -> None:
        for row in range(20):
            with rollout_trace_attr(step=1, sample_index=row, name=str(row)):
                for part in range(5):
                    with rollout_trace_attr(step=1, sample_index=100 + part, name="part"):
                        pass

    train()
    rows = sorted(taken(active.sampling, experiment="experiment") & set(range(20)))
    assert 0 < len(rows) < 20
    traces = defaultdict(list)
    for span in recorded():
        traces[span.span.trace_id].append(span)
    expected = [{"train step": []}, *({str(row): ["part"] * 5} for row in rows)]
    assert sorted(map(tree, traces.values()), key=str) == sorted(expected, key=str)


def test_sampled_out_trajectory_reaches_no_exporter_of_the_application(
    recorded: Callable[[], list[Recorded]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's spans inside it are left out, too."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    active = runtime.current()
    assert active is not None
    active.sampling = sampling(rate=0.0, validation="always")
    for validate in (False, True):
        with rollout_trace_attr(step=1, sample_index=1, validate=validate):
            provider.get_tracer("app").start_span("inside").end()
    assert [span.name for span in exporter.get_finished_spans()] == ["inside", "rollout_trace"]
    assert [span.name for span in recorded()] == ["inside", "rollout_trace"]


def test_choice_of_rows_travels_with_calls_outside_trajectories(
    fresh_process: None, test_exporters: None
) -> None:
    """A call for a whole step carries the chosen rows.

    Calls inside a trajectory do not.
    """
    otel_rollout.configure("spool", sample_groups=1)
    assert carrier.inject() is None
    token = context.attach(with_chosen(frozenset([3, "a"]), context.get_current()))
    sent = carrier.inject()
    context.detach(token)
    assert sent is not None
    token = context.attach(carrier.extract(sent))
    recorded = []
    for row in (1, 2, 3, "a"):
        with rollout_trace_attr(step=1, sample_index=row) as trajectory:
            if trajectory.trace_id:
                recorded.append(row)
                assert carrier.CHOSEN_KEY not in (carrier.inject() or {})
    context.detach(token)
    assert recorded == [3, "a"]


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("OTEL_ROLLOUT_SAMPLE_RATE", "2", "is not a share from 0 to 1; the default is used: 1.0."),
        ("OTEL_ROLLOUT_SAMPLE_RATE", "all", "is not a number"),
        ("OTEL_ROLLOUT_SAMPLE_EVERY", "0", "is less than 1"),
        ("OTEL_ROLLOUT_SAMPLE_VALIDATION", "yes", "is none of sampled, always, never"),
        (
            "OTEL_ROLLOUT_SAMPLE_VALIDATION",
            "nevr",
            "always, never (did you mean 'never'?); the default is used: 'sampled'.",
        ),
        ("OTEL_ROLLOUT_OUTCOME_KEEP", "spred=1", "rate (did you mean 'spread'?); the default is used."),
        ("OTEL_ROLLOUT_SAMPLE_GROUPS", "-1", "is less than 0"),
        ("OTEL_ROLLOUT_OUTCOME_KEEP", "errors,speed=2", "has 'speed', which is none of errors, validation,"),
        ("OTEL_ROLLOUT_OUTCOME_KEEP", "errors=2", "has 'errors=2', but errors takes no number"),
        ("OTEL_ROLLOUT_OUTCOME_KEEP", "spread", "has 'spread', but spread needs a number: spread=0.5"),
        ("OTEL_ROLLOUT_OUTCOME_KEEP", "rate=7", "has 'rate=7', where '7' is not a share from 0 to 1"),
        ("OTEL_ROLLOUT_OUTCOME_DEADLINE", "soon", "is not a number"),
    ],
)
def test_invalid_setting_is_warned_of_with_its_variable(variable: str, value: str, problem: str) -> None:
    """One sentence names variable, value, reason and the closest word; the default is used, and named."""
    configured, (said,) = settings_reader.from_environment({variable: value})
    assert said == f"{variable}={value!r} {said.split(' ', 1)[1]}"
    assert problem in said
    assert configured == settings.Settings()
