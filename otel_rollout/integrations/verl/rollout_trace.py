"""Replace ``verl.utils.rollout_trace``, with equal names and arguments.

``RolloutTraceConfig`` stays verl's class, but its ``init`` is wrapped: the wrapper decides whether this
package or verl records operations. ``rollout_trace_attr`` and ``rollout_trace_op`` are replaced when the
module is imported, before verl decorates its classes.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import otel_rollout
from otel_rollout.base.errors import fault, logger
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.seams import around
from otel_rollout.integrations.kit.tracker import unless_set
from otel_rollout.integrations.state import state
from otel_rollout.integrations.verl import seams, trace_config, traced_functions, trajectory
from otel_rollout.integrations.verl.trace_config import RecordedBy, recorded_by, set_recorded_by
from otel_rollout.record.runs import membership
from otel_rollout.settings import SettingsError

_FIELDS: Final = ("token2text", "project_name", "experiment_name", "max_samples_per_step_per_worker")
"""Fields of verl's configuration that are copied from the arguments of its ``init``."""


def install(module: ModuleType) -> None:
    """Replace the module's functions, before any other module imports them."""
    for name in ("rollout_trace_op", "rollout_trace_attr"):  # for the backend that is left to verl
        state.originals[name] = getattr(module, name, None)
    seams.wrap(module, "rollout_trace_attr", lambda _: rollout_trace_attr, "no trajectories are traced")
    seams.wrap(module, "rollout_trace_op", lambda _: rollout_trace_op, "turns and tools are not traced")


# --- RolloutTraceConfig ------------------------------------------------------------------------------------


@seams.around(
    "verl.utils.rollout_trace", "RolloutTraceConfig.init", "token2text and sampling flags have no effect"
)
def _init(original: Function, /, cls: Any, *args: Any, **kwargs: Any) -> None:
    given = inspect.signature(original).bind(cls, *args, **kwargs)
    given.apply_defaults()
    config = cls.get_instance()
    if config._initialized:
        return
    decided = _decide(given.arguments)
    if decided is RecordedBy.VERL:
        original(cls, *args, **kwargs)
    else:
        is_recorded = decided is RecordedBy.OTEL_ROLLOUT
        config.backend = given.arguments["backend"] or (trace_config.ENVIRONMENT if is_recorded else None)
        config.client = otel_rollout if is_recorded else None
        for name in _FIELDS:
            setattr(config, name, given.arguments.get(name))
        config._initialized = True
    set_recorded_by(config, decided)


def _decide(flags: dict[str, Any]) -> RecordedBy:
    """Decide who records operations, and complete the settings. Never raises."""
    try:
        backend = flags["backend"]
        if backend == trace_config.VERLS_OWN:
            trace_config.exporters_for(backend)  # for its warning
            return RecordedBy.VERL
        inherited = membership.decide()
        exporters = trace_config.exporters_for(backend)
        if not exporters or not inherited.enabled:
            return RecordedBy.NOBODY
        names = {
            "project_name": unless_set("OTEL_ROLLOUT_PROJECT", flags["project_name"]),
            "experiment_name": unless_set("OTEL_ROLLOUT_EXPERIMENT", flags["experiment_name"]),
        }
        wanted: dict[str, Any] = {name: value for name, value in names.items() if value is not None}
        if exporters.keys() != inherited.exporters.keys():  # the driver has not seen the flag
            wanted["exporters"] = trace_config.with_default_target(exporters)
            wanted["run_id"] = "-".join([inherited.run_id, *exporters])  # one set of exporters per run
        if any(getattr(inherited, name) != value for name, value in wanted.items()):
            membership.configure(wanted, joins="exporters" not in wanted)
    except SettingsError as error:
        logger.warning("otel-rollout: project and experiment stay unchanged: %s", error)
    except Exception as error:  # noqa: BLE001 - training goes on
        fault("reading verl's trace configuration", error)
    return RecordedBy.OTEL_ROLLOUT


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
    """Mark the block that produces one trajectory, as verl's function does.

    The wrapper of ``AgentLoopWorker._run_agent_loop`` knows more about the trajectory. If it has started the
    trajectory already, verl's call of this function starts no second one.

    Args:
        sample_index: row of the dataset that is the prompt.
        step: training step.
        rollout_n: index of the trajectory in its group.
        name: name of the trace.
        validate: whether the trajectory belongs to a validation.
        trace: False records nothing inside the block.
    """
    by = recorded_by()
    if by is RecordedBy.VERL:
        block: Any = state.originals["rollout_trace_attr"](
            sample_index, step, rollout_n, name, validate, trace
        )
    elif by is RecordedBy.NOBODY or trajectory.is_started_for_this_call():
        block = contextlib.nullcontext()
    else:
        block = otel_rollout.rollout_trace_attr(sample_index, step, rollout_n, name, validate, trace)
    with block:
        yield


# --- rollout_trace_op --------------------------------------------------------------------------------------

# cloudpickle pickles a wrapper by value if it pickles the wrapped function by value (anything in __main__).
# So wrappers use only functions and classes of this package, which cloudpickle pickles by reference.


def rollout_trace_op(func: Function) -> Function:
    """Record each call of a function or coroutine function, as verl's decorator does.

    Unlike verl's decorator, this one accepts plain functions too. An object that cannot be recorded,
    such as a class, is returned unchanged.
    """
    traced = traced_functions.traced(func)
    if traced is None:
        return func

    def call(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        return form_to_call(original, traced, args)(*args, **kwargs)

    return around(call)(func)


def form_to_call(func: Function, traced: Function, args: tuple[Any, ...]) -> Function:
    """Return ``func``, its traced form, or the form that verl's decorator gives it."""
    by = recorded_by()
    if by is RecordedBy.OTEL_ROLLOUT:
        return traced_functions.part_of_span(func, args) or traced
    if by is RecordedBy.VERL and args:  # verl's decorator is for methods
        own: Function = state.originals["rollout_trace_op"](func)
        return own
    return func
