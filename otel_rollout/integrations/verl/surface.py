"""The import surface of ``verl.utils.rollout_trace``: same names, arguments and meaning, recorded by us.

``RolloutTraceConfig`` stays verl's class; its ``init`` settles who records. The two others are replaced when
the module is imported, before any of verl's classes is decorated.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import otel_rollout
from otel_rollout.base.errors import fault
from otel_rollout.integrations.verl import launching, operations, seams, trajectory
from otel_rollout.integrations.verl.recorder import Recorder, recorder, settle
from otel_rollout.runs import membership
from otel_rollout.settings import SettingsError

_logger = logging.getLogger("otel_rollout")
_FIELDS: Final = ("token2text", "project_name", "experiment_name", "max_samples_per_step_per_worker")


def install(module: ModuleType) -> None:
    """Replace what the module offers, before it is used."""
    verls_own["op"] = getattr(module, "rollout_trace_op", None)
    verls_own["attr"] = getattr(module, "rollout_trace_attr", None)
    seams.wrap(module, "RolloutTraceConfig.init", _init, "token2text and sampling flags have no effect")
    seams.wrap(module, "rollout_trace_attr", lambda _: rollout_trace_attr, "no trajectories are traced")
    seams.wrap(module, "rollout_trace_op", lambda _: rollout_trace_op, "turns and tools are not traced")


verls_own: Final[dict[str, Any]] = {}
"""verl's own ``op`` and ``attr``, for the backend that is left to them."""


# --- RolloutTraceConfig ------------------------------------------------------------------------------------


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(cls: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(cls, *args, **kwargs)
        given.apply_defaults()
        config = cls.get_instance()
        if config._initialized:
            return
        who = _decide(given.arguments)
        if who is Recorder.VERL:
            original(cls, *args, **kwargs)
        else:
            recorded = who is Recorder.OTEL_ROLLOUT
            config.backend = given.arguments["backend"] or (launching.ENVIRONMENT if recorded else None)
            config.client = otel_rollout if recorded else None
            for name in _FIELDS:
                setattr(config, name, given.arguments.get(name))
            config._initialized = True
        settle(config, who)

    return init


def _decide(given: dict[str, Any]) -> Recorder:
    """Decide who records, and complete the set-up this process has inherited. Never raises."""
    try:
        backend = given["backend"]
        if backend == launching.VERLS_OWN:
            launching.asked_for(backend)
            return Recorder.VERL
        inherited = membership.decide()
        exporters = launching.asked_for(backend)
        if not exporters or not inherited.enabled:
            return Recorder.NOBODY
        names = {
            "project_name": launching.unless_set("OTEL_ROLLOUT_PROJECT", given["project_name"]),
            "experiment_name": launching.unless_set("OTEL_ROLLOUT_EXPERIMENT", given["experiment_name"]),
        }
        wanted: dict[str, Any] = {name: value for name, value in names.items() if value is not None}
        if exporters.keys() != inherited.exporters.keys():  # the driver has not seen the flag
            wanted["exporters"] = launching.with_default_target(exporters)
            wanted["run_id"] = "-".join([inherited.run_id, *exporters])  # a run has one set of targets
        if any(getattr(inherited, name) != value for name, value in wanted.items()):
            membership.configure(wanted, joins="exporters" not in wanted)
    except SettingsError as error:
        _logger.warning("otel-rollout: project and experiment stay what they were: %s", error)
    except Exception as error:  # noqa: BLE001 - training goes on
        fault("reading verl's trace configuration", error)
    return Recorder.OTEL_ROLLOUT


# --- rollout_trace_attr ------------------------------------------------------------------------------------


@contextlib.contextmanager
def rollout_trace_attr(
    sample_index: Any = None,
    step: Any = None,
    rollout_n: Any = None,
    name: str = "rollout_trace",
    validate: bool = False,
    trace: bool = True,
) -> Iterator[None]:
    """Mark the block that produces one trajectory, as verl's function of that name does.

    Inside ``AgentLoopWorker._run_agent_loop``, which knows more about the trajectory and has begun it
    already, verl's call of this is that trajectory.

    Args:
        sample_index: which dataset row was the prompt.
        step: training step.
        rollout_n: which sibling of its group.
        name: name of the trace.
        validate: whether this is validation.
        trace: False records nothing inside the block.
    """
    who = recorder()
    if who is Recorder.VERL:
        block: Any = verls_own["attr"](sample_index, step, rollout_n, name, validate, trace)
    elif who is Recorder.NOBODY or trajectory.is_begun_for_this_call():
        block = contextlib.nullcontext()
    else:
        block = otel_rollout.rollout_trace_attr(sample_index, step, rollout_n, name, validate, trace)
    with block:
        yield


# --- rollout_trace_op --------------------------------------------------------------------------------------

# The wrappers are pickled by value when the function they wrap is (anything in __main__): they name only
# functions and classes of ours, which pickle by reference.


def rollout_trace_op(func: Callable[..., Any]) -> Callable[..., Any]:
    """Record each call of a function, method or coroutine function, as verl's decorator of that name does.

    Unlike verl's it also takes plain functions; a generator it cannot record is returned as it is.
    """
    traced = operations.traced(func)
    if traced is None:
        return func
    wrapper = _coroutine if inspect.iscoroutinefunction(func) else _function
    return wrapper(func, traced)


def _coroutine(func: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await chosen(func, traced, args)(*args, **kwargs)

    return call


def _function(func: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return chosen(func, traced, args)(*args, **kwargs)

    return call


def chosen(func: Callable[..., Any], traced: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """What to call for ``func``: it itself, its traced form, or the form verl's own decorator gives it."""
    who = recorder()
    if who is Recorder.OTEL_ROLLOUT:
        return func if operations.has_its_span(func, args) else traced
    if who is Recorder.VERL and args:  # verl's decorator is for methods
        own: Callable[..., Any] = verls_own["op"](func)
        return own
    return func
