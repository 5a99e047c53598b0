"""Record verl's trajectories: identity, policy versions, outputs and rewards.

Both trainers run a trajectory, its reward included, in ``AgentLoopWorker._run_agent_loop``; the v1 trainer
does not override that method of its base class. The trainers identify a trajectory differently
(:mod:`otel_rollout.integrations.verl.known_trajectories`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import variable_set
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.spans import set_output
from otel_rollout.integrations.verl import known_trajectories, seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here

_MODULE: Final = "verl.experimental.agent_loop.agent_loop"
_MAX_LABEL: Final = 256
"""Maximum characters of a text in a reward's extra information; a longer one is not recorded as a score."""


class _Rollout:
    """State of the running trajectory."""

    def __init__(self, trajectory: otel_rollout.Trajectory, prompt: Any) -> None:
        self.trajectory = trajectory
        self.root = trace.get_current_span()
        self.is_entered_by_verl = False
        self.output: dict[str, Any] = {}
        self.policy_versions: set[Any] = set()
        if prompt is not None:
            trajectory.set_input(prompt.tolist() if hasattr(prompt, "tolist") else prompt)


_current: ContextVar[_Rollout | None] = ContextVar("otel-rollout-verl-trajectory", default=None)


def is_started_for_this_call() -> bool:
    """Return whether verl's ``rollout_trace_attr`` marks the running trajectory.

    Only the first call in a trajectory returns True.
    """
    rollout = _current.get()
    if rollout is None or rollout.is_entered_by_verl:
        return False
    rollout.is_entered_by_verl = True
    return True


@seams.around(
    _MODULE,
    "AgentLoopWorker._run_agent_loop",
    "the v1 trainer is not traced, and of the other no agents and siblings are known beyond verl's own",
)
async def _run_agent_loop(
    original: Function, /, self: Any, sampling_params: Any, trajectory: Any, **kwargs: Any
) -> Any:
    if not is_recorded_here():
        return await original(self, sampling_params, trajectory, **kwargs)
    with (
        _start(self, sampling_params, trajectory, kwargs) as started,
        variable_set(_current, _Rollout(started, kwargs.get("raw_prompt"))),
    ):
        return await original(self, sampling_params, trajectory, **kwargs)


# --- identity ----------------------------------------------------------------------------------------------


def _start(
    worker: Any, sampling_params: Any, trajectory: Any, kwargs: dict[str, Any]
) -> otel_rollout.Trajectory:
    """Return the block of a trajectory with the identity from verl's arguments."""
    with internal_errors("identifying a trajectory of verl's"):
        is_baseline = _is_baseline(worker, sampling_params, trajectory)
        extra: dict[str, Any] = {
            semconv.AGENT_NAME: kwargs.get("agent_name"),
            semconv.GROUP_ID: kwargs.get("uid"),
            semconv.GROUP_SIZE: known_trajectories.group_size(worker, bool(trajectory["validate"])) or None,
            known_trajectories.BASELINE: is_baseline or None,
        }
        return otel_rollout.rollout_trace_attr(
            sample_index=trajectory["sample_index"],
            step=trajectory["step"],
            rollout_n=_sibling_index(worker, trajectory, kwargs, is_baseline=is_baseline),
            name="agent_loop",
            validate=bool(trajectory["validate"]),
            trace=_is_wanted(trajectory, kwargs),
            **{
                name.removeprefix(semconv.EXTRA_PREFIX): value
                for name, value in extra.items()
                if value is not None
            },
        )
    return otel_rollout.rollout_trace_attr(name="agent_loop")


def _is_wanted(trajectory: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether to record the trajectory.

    The v1 trainer passes ``trace=False`` for every trajectory, so its value is ignored.
    """
    refused = kwargs.get("trace", True) is False and "session_id" not in kwargs
    return not refused and getattr(trajectory, "is_chosen", True)


def _sibling_index(worker: Any, trajectory: Any, kwargs: dict[str, Any], *, is_baseline: bool = False) -> Any:
    """Return the trajectory's index in its group, from 0."""
    siblings = known_trajectories.group_size(worker, bool(trajectory["validate"]))
    if is_baseline:
        return siblings + int(kwargs.get("session_id", 0))
    if "session_id" in kwargs:
        return kwargs["session_id"]
    row = getattr(trajectory, "row", None)
    return known_trajectories.sibling_index(trajectory["rollout_n"], row, kwargs.get("priority"), siblings)


def _is_baseline(worker: Any, sampling_params: Any, trajectory: Any) -> bool:
    """Return whether the trajectory is the greedy baseline of REMAX.

    The worker can tell only by the sampling parameters.
    """
    return (
        not trajectory["validate"]
        and isinstance(sampling_params, dict)
        and sampling_params.get("temperature") == 0
        and not known_trajectories.samples_greedily(worker)
    )


# --- facts that are known only while the trajectory runs ---------------------------------------------------


@internal_errors("reading the output of an agent loop")
def note_outputs(result: Any) -> None:
    """Record the running trajectory's policy versions and turns. Never raises.

    The output's numbers are kept until the reward is known.

    Args:
        result: verl's ``AgentLoopOutput``, or a list of them.
    """
    rollout = _current.get()
    outputs = result if isinstance(result, list) else [result]
    if rollout is None or not outputs or not rollout.root.is_recording():
        return
    for extra in (getattr(output, "extra_fields", None) or {} for output in outputs):
        note_policy_versions(extra.get("min_global_steps"), extra.get("max_global_steps"))
    turns = getattr(outputs[-1], "num_turns", None)
    if turns is not None:
        rollout.root.set_attribute(semconv.NUM_TURNS, int(turns))
        rollout.output["num_turns"] = int(turns)
    rollout.output["response_tokens"] = sum(len(output.response_ids) for output in outputs)
    if len(outputs) > 1:
        rollout.output["outputs"] = len(outputs)


def note_policy_versions(*versions: Any) -> None:
    """Set the weights' versions on the trajectory at once, because it may fail later; ignore None."""
    rollout = _current.get()
    new = {version for version in versions if version is not None}
    if rollout is not None and new - rollout.policy_versions:
        rollout.policy_versions |= new
        rollout.root.set_attribute(semconv.POLICY_VERSION_MIN, min(rollout.policy_versions))
        rollout.root.set_attribute(semconv.POLICY_VERSION_MAX, max(rollout.policy_versions))


def show_text_of(span: Span) -> None:
    """Have the trajectory's root show the text of the agent loop's ``span``."""
    rollout = _current.get()
    if rollout is not None:
        rollout.root.set_attribute(semconv.TEXT_OF, f"{span.get_span_context().span_id:016x}")


# --- rewards -----------------------------------------------------------------------------------------------


@seams.around(_MODULE, "AgentLoopWorker._compute_score", "rewards are not traced")
async def _compute_score(original: Function, /, self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_recorded_here():
        return await original(self, outputs, *args, **kwargs)
    scored = outputs[-1] if outputs else None
    has_reward_workers = getattr(self, "reward_loop_worker_handles", None) is not None
    if getattr(scored, "reward_score", None) is None and has_reward_workers:
        result = await _reward(lambda: original(self, outputs, *args, **kwargs), scored)
    else:  # the agent loop has computed the reward, or the trainer will
        result = await original(self, outputs, *args, **kwargs)
    note_outputs(outputs)
    _record_scores(scored)
    return result


@otel_rollout.rollout_trace_op(name="compute_score", kind=semconv.KIND_EVALUATOR, exclude=("call", "scored"))
async def _reward(call: Callable[[], Awaitable[Any]], scored: Any) -> Any:
    """Have verl compute the reward inside a span that shows the reward."""
    result = await call()
    set_output({"reward_score": scored.reward_score, "reward_extra_info": _extra_information(scored)})
    return result


def _extra_information(scored: Any) -> dict[str, Any]:
    information = (getattr(scored, "extra_fields", None) or {}).get("reward_extra_info")
    return information if isinstance(information, dict) else {}


@internal_errors("recording a reward")
def _record_scores(scored: Any) -> None:
    """Record the reward and the values beside it as scores, and the trajectory's output. Never raises."""
    reward = getattr(scored, "reward_score", None)
    if reward is not None:
        otel_rollout.score("reward", reward)
    for name, value in _extra_information(scored).items():
        if name != "reward" and is_score(value):
            otel_rollout.score(str(name), value)
    rollout = _current.get()
    if rollout is not None:
        rollout.trajectory.set_output({**rollout.output, "reward": reward})


def is_score(value: Any) -> bool:
    """Return whether a value beside the reward is recorded as a score: a number, or a short text."""
    if isinstance(value, str):
        return len(value) <= _MAX_LABEL
    return isinstance(value, (bool, int, float)) or getattr(value, "ndim", None) == 0
