"""The kit of integrations, with a framework and an integration of a few lines."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rollout
from otel_rollout.base.patching import ReportingFinder
from otel_rollout.integrations.kit import logged_errors
from otel_rollout.integrations.kit.logged_errors import LoggedErrors
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.kit.seams import Ended, Seams, after, timed
from otel_rollout.integrations.kit.spans import set_attributes, set_output, tool_call
from otel_rollout.integrations.kit.tracker import active_runs, unless_set
from otel_rollout.record.propagation.state import state as propagation
from otel_rollout.record.runs.state import state as runs
from tests.spool_reader import Recorded

FRAMEWORK = {
    "fake_framework/__init__.py": "__version__ = '1.2'",
    "fake_framework/agent.py": """
        class Agent:
            def act(self, text):
                return text.upper()

            @classmethod
            def of(cls, name):
                return cls()

            @staticmethod
            def mean(values):
                return sum(values) / len(values)

            async def answer(self, text):
                return text

            async def wait(self):
                return 1

            @property
            def size(self):
                return 1

        class Planner(Agent):
            pass
        """,
    "fake_framework/scoring.py": "def score(text):\n    return len(text)",
    "fake_framework/loop.py": "from fake_framework.scoring import score",
    "fake_framework/broken.py": "value = 1",
}
INTEGRATION = {
    "fake_integration/__init__.py": """
        from otel_rollout.integrations.kit.seams import Seams

        seams = Seams("fake_framework", __name__)
        """,
    "fake_integration/agents.py": """
        import otel_rollout
        from fake_integration import seams

        def install(module):
            seams.wrap(module, "Agent.act", otel_rollout.rollout_trace_op(name="act"), "no agent is traced")
            seams.wrap(module, "Agent.of", otel_rollout.rollout_trace_op(name="of"), "no factory is traced")
            seams.wrap(module, "Agent.plan", otel_rollout.rollout_trace_op, "plans are not traced")
        """,
    "fake_integration/failing.py": """
        def install(module):
            raise KeyError("mine")
        """,
    "fake_integration/hooks.py": """
        from fake_integration import seams

        seen = []
        AGENT = "fake_framework.agent"

        @seams.around({AGENT: "Agent", "fake_framework.other": "Agent"}, "act", "-")
        def act(original, /, agent, text):
            return original(agent, text + "!")

        @seams.before(AGENT, "Agent.answer", "answers are not seen")
        def before_answer(agent, text):
            seen.append(text)
            raise KeyError("mine")

        @seams.around(AGENT, "Agent.wait", "waits are not seen")
        async def wait(original, /, *args):
            return ["waited", await original(*args)]

        @seams.after(AGENT, "Agent.mean", "means are not seen")
        def after_mean(mean, values):
            seen.append(mean)

        @seams.after("fake_framework.scoring", "score", "scores are not seen")
        def after_score(*_):
            seen.append("another module's")
        """,
    "fake_integration/hint.py": """
        def install(module):
            module.hint = True
        """,
}
TABLE = {
    "fake_framework.agent": (".agents",),
    "fake_framework.broken": (".failing", ".hint"),
}


@pytest.fixture
def seams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seams]:
    """The seams of a framework that has not been imported."""
    for name, text in {**FRAMEWORK, **INTEGRATION}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if type(f) is not ReportingFinder])
    yield importlib.import_module("fake_integration").seams
    otel_rollout.uninstrument()
    for name in [name for name in sys.modules if name.startswith("fake_")]:
        del sys.modules[name]


def test_framework_is_traced_from_its_import_on(seams: Seams, recorded: Callable[[], list[Recorded]]) -> None:
    """Installing imports nothing; functions and class methods are recorded."""
    seams.install(TABLE, {})
    assert "fake_framework" not in sys.modules
    agent = importlib.import_module("fake_framework.agent")
    with otel_rollout.rollout_trace_attr(step=1):
        assert agent.Agent.of("x").act("hello") == "HELLO"
    assert [span.name for span in recorded()] == ["of", "act", "rollout_trace"]


def test_static_method_stays_static_and_is_traced(
    seams: Seams, recorded: Callable[[], list[Recorded]]
) -> None:
    """Whether it is called on the class or on an instance, and by a wrapper of any kind."""
    agent, seen = importlib.import_module("fake_framework.agent"), []
    seams.wrap(agent, "Agent.mean", otel_rollout.rollout_trace_op(name="mean"), "means are not traced")
    seams.wrap(agent, "Agent.mean", after(lambda *call: seen.append(call), "seeing a mean"), "means are lost")
    with otel_rollout.rollout_trace_attr(step=1):
        assert (agent.Agent.mean([1.0, 2.0]), agent.Agent().mean([1.0, 2.0])) == (1.5, 1.5)
    assert [(span.name, span.input) for span in recorded()[:2]] == [("mean", {"values": [1.0, 2.0]})] * 2
    assert seen == [(1.5, [1.0, 2.0])] * 2


@pytest.mark.internal_errors
async def test_decorated_functions_follow_those_of_the_framework(
    seams: Seams, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a module in the table, by the framework's module; coroutine functions stay what they are."""
    agent = importlib.import_module("fake_framework.agent")
    seams.patch((".hooks",), agent)
    hooks = importlib.import_module("fake_integration.hooks")
    one = agent.Agent()
    assert (one.act("hi"), agent.Agent.mean([1.0, 2.0])) == ("HI!", 1.5)
    assert (await one.answer("text"), await one.wait()) == ("text", ["waited", 1])
    assert all(inspect.iscoroutinefunction(method) for method in (one.answer, one.wait))
    assert hooks.seen == [1.5, "text"]
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "internal error while following fake_framework.agent.Agent.answer" in line


def test_function_that_other_modules_have_imported_is_replaced_there_too(seams: Seams) -> None:
    """A framework may be imported before its integration; other libraries' names stay."""
    loop, scoring = [importlib.import_module(f"fake_framework.{name}") for name in ("loop", "scoring")]
    original, seen = scoring.score, []
    sys.modules["fake_other"] = other = type(sys)("fake_other")
    other.score = original  # type: ignore[attr-defined]
    seams.wrap(scoring, "score", after(lambda *call: seen.append(call), "seeing a score"), "no scores")
    assert (loop.score("abc"), loop.score is scoring.score, seen) == (3, True, [(3, "abc")])
    assert other.score is original  # type: ignore[attr-defined]


def test_name_that_cannot_be_wrapped_stays_and_is_a_warning(
    seams: Seams, caplog: pytest.LogCaptureFixture
) -> None:
    """A property is no function; an inherited method is patched in the class that defines it."""
    agent = importlib.import_module("fake_framework.agent")
    before = vars(agent.Agent)["size"]
    seams.wrap(agent, "Agent.size", otel_rollout.rollout_trace_op, "sizes are not traced")
    seams.wrap(agent, "Planner.act", otel_rollout.rollout_trace_op, "planners are not traced")
    assert (vars(agent.Agent)["size"], "act" in vars(agent.Planner)) == (before, False)
    assert [record.getMessage() for record in caplog.records] == [
        "otel-rollout: fake_framework 1.2 has fake_framework.agent.Agent.size as property, which cannot be "
        "wrapped, so sizes are not traced; the rest is traced.",
        "otel-rollout: fake_framework 1.2 has fake_framework.agent.Planner.act only as a method of "
        "fake_framework.agent.Agent, so planners are not traced; the rest is traced.",
    ]


def test_missing_name_is_a_warning_with_its_loss(
    seams: Seams, tracing: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the framework's version, the name, and what is not traced."""
    seams.install(TABLE, {})
    importlib.import_module("fake_framework.agent")
    (line,) = [r.getMessage() for r in caplog.records if "Agent.plan" in r.getMessage()]
    assert line == (
        "otel-rollout: fake_framework 1.2 has no fake_framework.agent.Agent.plan, so plans are not traced; "
        "the rest is traced."
    )


@pytest.mark.internal_errors
def test_failing_patch_is_logged_and_the_next_one_takes_effect(
    seams: Seams, tracing: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The framework is imported."""
    seams.install(TABLE, {})
    broken = importlib.import_module("fake_framework.broken")
    assert (broken.value, broken.hint) == (1, True)
    assert "internal error while patching fake_framework.broken of fake_framework 1.2" in caplog.text


def test_process_without_tracing_gets_the_other_table(seams: Seams, fresh_process: None) -> None:
    """An integration may leave a hint where tracing is not configured."""
    seams.install(TABLE, {"fake_framework.broken": (".hint",)})
    assert importlib.import_module("fake_framework.broken").hint
    agent = importlib.import_module("fake_framework.agent").Agent
    assert not hasattr(agent.act, "__wrapped__")


@pytest.mark.parametrize("is_imported", [True, False])
def test_integration_that_is_imported_before_configure_traces_from_then_on(
    seams: Seams, fresh_process: None, test_exporters: None, tmp_path: Path, is_imported: bool
) -> None:
    """Nothing is patched before; the framework may have been imported in between."""
    finders = list(sys.meta_path)
    seams.install({"fake_framework.broken": (".hint",)}, {})
    assert (sys.meta_path, propagation.patches) == (finders, None)
    broken = importlib.import_module("fake_framework.broken") if is_imported else None
    assert not hasattr(broken, "hint")
    otel_rollout.configure(project_name="project")
    assert sys.meta_path == finders
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered.jsonl")}})
    assert importlib.import_module("fake_framework.broken").hint
    assert (runs.waiting_for_configure, propagation.patches is None) == ([], False)


def test_logged_error_fails_the_span_with_its_exception(recorded: Callable[[], list[Recorded]]) -> None:
    """Only inside a block, only from warnings on, and only of a watched logger."""
    module: Any = type(sys)("a_frameworks_module")
    module.logger = logging.getLogger("a_frameworks_module")
    logged_errors.install(module)

    @otel_rollout.rollout_trace_op
    def parse(level: int) -> bool:
        with LoggedErrors() as errors:
            try:
                raise KeyError("unreadable")
            except KeyError:
                module.logger.log(level, "cannot parse")
        module.logger.error("after the block")
        return errors.has_failed

    with otel_rollout.rollout_trace_attr(step=1):
        assert [parse(logging.INFO), parse(logging.WARNING)] == [False, True]
    fine, failed, _ = recorded()
    assert not fine.span.status.code
    assert (failed.span.status.message, len(failed.span.events)) == ("cannot parse", 1)


def test_output_and_attributes_are_those_that_are_set(recorded: Callable[[], list[Recorded]]) -> None:
    """The function's result goes to its caller; None is no attribute."""

    @otel_rollout.rollout_trace_op
    def call() -> str:
        from opentelemetry import trace

        set_attributes(trace.get_current_span(), {"a": 1, "b": None})
        set_output({"shown": True})
        return "result"

    with otel_rollout.rollout_trace_attr(step=1):
        assert call() == "result"
    span, _ = recorded()
    assert (span.output, span.attributes["a"], "b" in span.attributes) == ({"shown": True}, 1, False)


def test_kit_records_no_content_if_the_settings_exclude_it(recorded: Callable[[], list[Recorded]]) -> None:
    """Neither outputs, nor messages of errors, nor what a model has put in the place of a tool's name."""
    otel_rollout.configure(capture_content="none")

    @otel_rollout.rollout_trace_op
    def call() -> None:
        set_output({"classified": 1})

    trajectory = OpenTrajectory(otel_rollout.rollout_trace_attr(step=1))
    with trajectory.inside():
        call()
    name, attributes = tool_call("classified, please", None)
    trajectory.record(
        name, "TOOL", (1, 2), input={"classified": 1}, attributes=attributes, error="classified"
    )
    trajectory.end()
    spans = recorded()
    assert sorted(span.name.rpartition(".")[2] for span in spans) == [
        "call",
        "execute_tool invalid",
        "rollout_trace",
    ]
    assert "classified" not in str([(span.span, span.attributes) for span in spans])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("add", "add"),
        ("server.add-1", "server.add-1"),
        ("", "invalid"),
        ("x" * 65, "invalid"),
        (None, "None"),
    ],
)
def test_name_of_a_tool_is_short(name: Any, shown: str) -> None:
    """A model may write anything where the name of a tool belongs."""
    span_name, attributes = tool_call(name, 7)
    assert span_name == f"execute_tool {shown}"
    assert attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": shown,
        "gen_ai.tool.call.id": "7",
    }


def divide(by: int) -> float:
    """Return six divided by a number."""
    return 6 / by


def test_timed_function_is_observed_with_its_result_and_its_error() -> None:
    """The caller gets the result and the exception as before."""
    seen: list[tuple[Ended, int]] = []
    start_ns = time.time_ns()
    divided = timed(lambda ended, by: seen.append((ended, by)), "observing")(divide)
    assert divided(3) == 2
    with pytest.raises(ZeroDivisionError) as raised:
        divided(0)
    (first, _), (second, _) = seen
    assert seen == [(Ended(first.times, result=2.0), 3), (Ended(second.times, error=raised.value), 0)]
    assert start_ns <= first.times[0] <= first.times[1] <= second.times[0] <= second.times[1]


@pytest.mark.internal_errors
def test_error_while_observing_is_logged_and_the_function_is_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the result nor the exception of the function is replaced."""
    divided = timed(lambda ended, by: 1 / 0, "observing a division")(divide)
    assert divided(3) == 2
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        divided(0)
    assert "internal error while observing a division" in caplog.text


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (None, {}),
        (SimpleNamespace(entity="me", project="rl", id="x1"), {"weave": "me/rl/x1"}),
        (SimpleNamespace(entity="me", project="rl", id="x1", disabled=True), {}),
        (SimpleNamespace(entity="", project="rl", id="x1"), {}),
    ],
    ids=["no run", "online", "disabled", "offline"],
)
def test_run_of_wandb_is_found_if_it_has_an_address(run: Any, found: dict[str, str]) -> None:
    """MLflow's active run is asked for only if the trainer reports to MLflow."""
    assert active_runs(mlflow=False, wandb_run=run) == found


def test_name_that_the_user_has_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer's empty name is none."""
    found = [unless_set("OTEL_ROLLOUT_EXPERIMENT", name) for name in ("mine", "", None)]
    assert found == ["mine", None, None]
    monkeypatch.setenv("OTEL_ROLLOUT_EXPERIMENT", "set")
    assert unless_set("OTEL_ROLLOUT_EXPERIMENT", "mine") is None
