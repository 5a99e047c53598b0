"""``verl.utils.rollout_trace`` with the plugin, as user code imports it."""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

import otel_rollout
from otel_rollout.record.runs import membership
from tests.spool_reader import Recorded, tree


class Traced:
    """A class that is decorated as in user code."""

    @rollout_trace_op
    async def inner(self, a: str, b: str = "default") -> str:
        return f"{a}, {b}"

    @rollout_trace_op
    async def middle(self, a: str) -> str:
        return await self.inner(a, b="given")

    @rollout_trace_op
    def plain(self, a: int) -> int:
        return 2 * a

    @rollout_trace_op
    async def fails(self) -> None:
        raise ValueError("on purpose")


@rollout_trace_op
def function(a: int) -> int:
    return a + 1


def _init(backend: str | None, **more: Any) -> None:
    RolloutTraceConfig.init("project", "experiment", backend, **more)


async def test_decorated_methods_return_their_results_and_nest(
    trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """Spans have the inputs by name, without self."""
    _init("otel")
    with rollout_trace_attr(sample_index=2, step=1, rollout_n=3, name="mine", validate=True):
        assert await Traced().middle("x") == "x, given"
        assert Traced().plain(4) == 8
    spans = recorded()
    assert tree(spans) == {"mine": [{"Traced.middle": ["Traced.inner"]}, "Traced.plain"]}
    assert spans[0].input == {"a": "x", "b": "given"}
    root = spans[-1].attributes
    names = ("sample_index", "step", "rollout_n", "validate")
    assert [root[f"rollout.{name}"] for name in names] == [2, 1, 3, True]
    assert (root["rollout.project_name"], root["rollout.experiment_name"]) == ("project", "experiment")


async def test_exception_of_a_decorated_method_is_raised_unchanged(
    trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The span has status ERROR."""
    _init("otel")
    with pytest.raises(ValueError, match="on purpose"):
        await Traced().fails()
    (span,) = recorded()
    assert span.span.status.code == 2


async def test_trace_false_records_nothing_inside_the_block(
    trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """Nor after an exception inside; tracing continues after the block."""
    _init("otel")
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0, trace=False):
        assert await Traced().middle("x") == "x, given"
    with pytest.raises(ValueError, match="on purpose"), rollout_trace_attr(step=1, trace=False):
        await Traced().fails()
    with rollout_trace_attr(1, 2, 0):
        await Traced().inner("y")
    assert [span.name for span in recorded()] == ["Traced.inner", "rollout_trace"]


async def test_unknown_backend_is_an_error_in_the_log_and_traces_nothing(
    trace_config: Any, recorded: Callable[[], list[Recorded]], caplog: pytest.LogCaptureFixture
) -> None:
    """The flag wins over the environment; results do not change."""
    _init("dummy")
    with rollout_trace_attr(step=1):
        assert await Traced().inner("x") == "x, default"
    assert RolloutTraceConfig.get_backend() == "dummy"
    assert recorded() == []
    assert [r.getMessage() for r in caplog.records if "trace.backend=dummy" in r.getMessage()]


async def test_flag_that_the_driver_has_not_read_wins_in_the_worker(
    trace_config: Any, recorded: Callable[[], list[Recorded]], caplog: pytest.LogCaptureFixture
) -> None:
    """The driver has started Ray itself; the worker records a run of its own."""
    before = membership.decide().run_id
    _init("test-faulty")
    await Traced().inner("x")
    assert list(membership.decide().exporters) == ["test-faulty"]
    assert membership.decide().run_id == f"{before}-test-faulty"
    assert [span.name for span in recorded()] == ["Traced.inner"]
    assert [r for r in caplog.records if "the flag wins" in r.getMessage()]


async def test_without_flag_and_variable_nothing_is_traced(
    fresh_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decorated methods behave as before, and the backend is None."""
    RolloutTraceConfig.reset()
    _init(None)
    assert await Traced().inner("x") == "x, default"
    assert RolloutTraceConfig.get_backend() is None
    assert RolloutTraceConfig.get_client() is None
    RolloutTraceConfig.reset()


async def test_second_init_does_nothing_until_reset(trace_config: Any) -> None:
    """``RolloutTraceConfig`` behaves as in verl."""
    _init("otel", token2text=True, max_samples_per_step_per_worker=3)
    RolloutTraceConfig.init("other", "other", "dummy")
    config = RolloutTraceConfig.get_instance()
    assert (config.project_name, config.experiment_name) == ("project", "experiment")
    assert config.max_samples_per_step_per_worker == 3
    assert RolloutTraceConfig.enable_token2text() is True
    assert RolloutTraceConfig.get_backend() == "otel"
    assert RolloutTraceConfig.get_client() is otel_rollout
    RolloutTraceConfig.reset()
    assert RolloutTraceConfig.get_backend() is None
    assert RolloutTraceConfig.get_instance() is not config


async def test_callable_without_a_name_can_be_decorated(
    trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """A partial has no name."""
    _init("otel")
    assert await rollout_trace_op(functools.partial(Traced().inner, b="bound"))("x") == "x, bound"
    assert rollout_trace_op(functools.partial(function.__wrapped__))(1) == 2
    assert len(recorded()) == 3


def test_functions_and_generators_can_be_decorated(
    trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """A plain function is traced, unlike by verl's decorator.

    A generator works as before.
    """

    def counting() -> Any:
        yield from (1, 2)

    _init("otel")
    assert function(1) == 2
    assert list(rollout_trace_op(counting)()) == [1, 2]
    assert "function" in [span.name for span in recorded()]


async def test_backend_trackio_is_left_to_verls_own_code(
    trace_config: Any,
    recorded: Callable[[], list[Recorded]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """verl logs to trackio, here a stand-in that starts no server.

    One warning tells so.
    """
    logged: list[dict[str, Any]] = []
    trackio = types.ModuleType("trackio")
    trackio.init = lambda **_: None  # type: ignore[attr-defined]
    trackio.log = lambda values, step=None: logged.append({"step": step, **values})  # type: ignore[attr-defined]
    trackio.Trace = lambda messages, metadata: metadata  # type: ignore[attr-defined]
    running = types.SimpleNamespace(current_run=types.SimpleNamespace(get=lambda: None))
    trackio.context_vars = running  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    _init("trackio")
    with rollout_trace_attr(sample_index=2, step=1, rollout_n=3):
        assert await Traced().inner("x") == "x, default"
    assert [entry["step"] for entry in logged] == [1]
    assert RolloutTraceConfig.get_client() is trackio
    assert recorded() == []
    assert len([r for r in caplog.records if "trackio is left to verl" in r.getMessage()]) == 1


def test_decorated_class_can_be_pickled_by_value() -> None:
    """Ray pickles what is defined in ``__main__`` by value."""
    module = types.ModuleType("__main__")
    source = "class Made:\n    @op\n    async def generate(self, prompt_ids): return prompt_ids\n"
    exec(source, {"op": rollout_trace_op, "__name__": "__main__"}, vars(module))
    again = cloudpickle.loads(cloudpickle.dumps(module.Made))
    coroutine = again().generate([1])
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    assert stop.value.value == [1]


@pytest.fixture(autouse=True)
def _our_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="otel_rollout")
