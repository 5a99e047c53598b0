"""One trajectory of verl's, in both trainers: its identity, its policy versions, its reward.

``AgentLoopWorker._run_agent_loop`` is where both trainers run a trajectory, its reward included; the v1
trainer leaves that method of its base class alone. What identifies the trajectory differs:

- The v1 trainer has all siblings share one ``trajectory``, whose ``rollout_n`` is 0; the sibling's index is
  in ``session_id``. It passes ``trace=False`` whatever is asked for.
- The legacy trainer counts siblings anew in each worker; ``priority`` is the row's place in the whole batch.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span

import otel_rollout
from otel_rollout import runtime
from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.integrations.verl import batch, seams
from otel_rollout.integrations.verl.recorder import config, is_ours

_random: Final = random.SystemRandom()
"""Training seeds the global generators, and what they give must not change because of tracing."""
_MAX_LABEL: Final = 256
"""Characters up to which a text among a reward's extra information is a score of its own."""


def install(module: ModuleType) -> None:
    """Wrap what runs, scores and samples trajectories (``verl.experimental.agent_loop.agent_loop``)."""
    worker = "AgentLoopWorkerBase" if hasattr(module, "AgentLoopWorkerBase") else "AgentLoopWorker"
    seams.wrap(
        module,
        f"{worker}._run_agent_loop",
        _running,
        "the v1 trainer is not traced, and of the other no agents and siblings are known beyond verl's own",
    )
    seams.wrap(module, f"{worker}._compute_score", _scoring, "rewards are not traced")
    seams.wrap(module, "get_trajectory_info", _choosing, "max_samples_per_step_per_worker has no effect")
    batch.install(module)
    if hasattr(module, "RolloutTraceConfig"):
        module.RolloutTraceConfig = _WithoutLimit(module.RolloutTraceConfig)  # type: ignore[attr-defined]


# --- the trajectory ----------------------------------------------------------------------------------------


class _Rollout:
    """The trajectory that is running here: what is learned of it on the way."""

    def __init__(self, trajectory: otel_rollout.Trajectory, root: Span) -> None:
        self.trajectory = trajectory
        self.root = root
        self.is_entered_by_verl = False
        self.output: dict[str, Any] = {}
        self.weights: set[Any] = set()
        """Versions of the weights that answered."""


_current: ContextVar[_Rollout | None] = ContextVar("otel-rollout-verl-trajectory", default=None)


def is_begun_for_this_call() -> bool:
    """Whether verl's own call of ``rollout_trace_attr`` is for the trajectory that is running; true once."""
    rollout = _current.get()
    if rollout is None or rollout.is_entered_by_verl:
        return False
    rollout.is_entered_by_verl = True
    return True


def _running(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _run_agent_loop(self: Any, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        if not is_ours():
            return await original(self, sampling_params, trajectory, **kwargs)
        with _trajectory(self, trajectory, kwargs) as begun:
            before = _current.get()
            _current.set(_begun(begun, kwargs))
            try:
                return await original(self, sampling_params, trajectory, **kwargs)
            finally:
                _current.set(before)

    return _run_agent_loop


def _trajectory(worker: Any, trajectory: Any, kwargs: dict[str, Any]) -> otel_rollout.Trajectory:
    try:
        extra: dict[str, Any] = {
            semconv.AGENT_NAME: kwargs.get("agent_name"),
            semconv.GROUP_ID: kwargs.get("uid"),
            semconv.GROUP_SIZE: _siblings(worker, bool(trajectory["validate"])) or None,
        }
        return otel_rollout.rollout_trace_attr(
            sample_index=trajectory["sample_index"],
            step=trajectory["step"],
            rollout_n=_sibling(worker, trajectory, kwargs),
            name="agent_loop",
            validate=bool(trajectory["validate"]),
            trace=_is_wanted(trajectory, kwargs),
            **{
                name.removeprefix(semconv.EXTRA_PREFIX): value
                for name, value in extra.items()
                if value is not None
            },
        )
    except Exception as error:  # noqa: BLE001 - the trajectory runs unidentified
        fault("identifying a trajectory of verl's", error)
        return otel_rollout.rollout_trace_attr(name="agent_loop")


def _begun(trajectory: otel_rollout.Trajectory, kwargs: dict[str, Any]) -> _Rollout:
    rollout = _Rollout(trajectory, trace.get_current_span())
    prompt = kwargs.get("raw_prompt")
    if prompt is not None:
        trajectory.set_input(prompt.tolist() if hasattr(prompt, "tolist") else prompt)
    return rollout


def _is_wanted(trajectory: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the trajectory is recorded. verl's v1 trainer says ``trace=False`` of every one."""
    refused = kwargs.get("trace", True) is False and "session_id" not in kwargs
    return not refused and getattr(trajectory, "is_chosen", True)


def _sibling(worker: Any, trajectory: Any, kwargs: dict[str, Any]) -> Any:
    """Which sibling of its group the trajectory is, from 0."""
    if "session_id" in kwargs:
        return kwargs["session_id"]
    counted = trajectory["rollout_n"]
    place = kwargs.get("priority")
    siblings = _siblings(worker, bool(trajectory["validate"]))
    if place is None or siblings < 1:
        return counted
    # Counted from the start of the worker's part of the batch, the group may have begun in another's.
    cut = counted == getattr(trajectory, "row", None)
    return int(place if cut else counted) % siblings


def _siblings(worker: Any, validate: bool) -> int:
    try:
        rollout = worker.config.actor_rollout_ref.rollout
        return int(rollout.val_kwargs.n if validate else rollout.n)
    except Exception:  # noqa: BLE001 - another version's configuration
        return 0


# --- what is learned on the way ----------------------------------------------------------------------------


def outputs_are(result: Any) -> None:
    """Note what came of the trajectory that is running, on its root span. Never raises.

    Args:
        result: verl's ``AgentLoopOutput``, or a list of them.
    """
    rollout = _current.get()
    outputs = result if isinstance(result, list) else [result]
    if rollout is None or not outputs or not rollout.root.is_recording():
        return
    try:
        _note_outputs(rollout, outputs)
    except Exception as error:  # noqa: BLE001
        fault("reading the output of an agent loop", error)


def weights_are(*versions: Any) -> None:
    """Note versions of the weights that answered in the trajectory that is running; None is none."""
    rollout = _current.get()
    if rollout is not None:
        rollout.weights.update(version for version in versions if version is not None)


def _note_outputs(rollout: _Rollout, outputs: list[Any]) -> None:
    for extra in (getattr(output, "extra_fields", None) or {} for output in outputs):
        weights_are(extra.get("min_global_steps"), extra.get("max_global_steps"))
    if rollout.weights:
        rollout.root.set_attribute(semconv.POLICY_VERSION_MIN, min(rollout.weights))
        rollout.root.set_attribute(semconv.POLICY_VERSION_MAX, max(rollout.weights))
    turns = getattr(outputs[-1], "num_turns", None)
    if turns is not None:
        rollout.root.set_attribute(semconv.NUM_TURNS, int(turns))
        rollout.output["num_turns"] = int(turns)
    rollout.output["response_tokens"] = sum(len(output.response_ids) for output in outputs)
    if len(outputs) > 1:
        rollout.output["outputs"] = len(outputs)


def answer_is_of(span: Span) -> None:
    """Show the text of an agent loop's answer as the trajectory's. Never raises, as the span is ours."""
    rollout = _current.get()
    if rollout is not None:
        rollout.root.set_attribute(semconv.TEXT_OF, f"{span.get_span_context().span_id:016x}")


# --- the reward --------------------------------------------------------------------------------------------


def _scoring(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _compute_score(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours():
            return await original(self, outputs, *args, **kwargs)
        scored = outputs[-1] if isinstance(outputs, list) and outputs else outputs
        call = functools.partial(original, self, outputs, *args, **kwargs)
        if getattr(scored, "reward_score", None) is None and _has_reward_workers(self):
            result = await _Reward(call, scored).compute_score()
        else:  # the agent loop has scored itself, or the trainer will
            result = await call()
        _reward_is(outputs, scored)
        return result

    return _compute_score


def _has_reward_workers(worker: Any) -> bool:
    return getattr(worker, "reward_loop_worker_handles", None) is not None or hasattr(
        worker, "reward_manager_worker"
    )


class _Reward:
    """One computation of a reward."""

    def __init__(self, call: Callable[[], Any], scored: Any) -> None:
        self._call = call
        self._scored = scored

    @otel_rollout.rollout_trace_op(name="compute_score", kind=semconv.KIND_EVALUATOR)
    async def compute_score(self) -> Any:
        """Have verl compute it; the span shows what came of it."""
        result = await self._call()
        shown = {
            "reward_score": self._scored.reward_score,
            "reward_extra_info": _extra_information(self._scored),
        }
        show_output(shown)
        return result


def show_output(value: Any) -> None:
    """Have the current span show ``value`` as its output, whatever the operation returns. Never raises."""
    from otel_rollout.capture import encoding, span_io

    try:
        active = runtime.current()
        if active is not None:
            encoded = encoding.to_json(value, active.settings.value_limit)
            span_io.put_json(trace.get_current_span(), semconv.OUTPUT_VALUE, encoded)
    except Exception as error:  # noqa: BLE001
        fault("showing an operation's output", error)


def _extra_information(scored: Any) -> dict[str, Any]:
    found = (getattr(scored, "extra_fields", None) or {}).get("reward_extra_info")
    return found if isinstance(found, dict) else {}


def _reward_is(outputs: Any, scored: Any) -> None:
    outputs_are(outputs)
    try:
        reward = getattr(scored, "reward_score", None)
        if reward is not None:
            otel_rollout.score("reward", reward)
        for name, value in _extra_information(scored).items():
            if name != "reward" and _is_score(value):
                otel_rollout.score(str(name), value)
        rollout = _current.get()
        if rollout is not None:
            rollout.trajectory.set_output({**rollout.output, "reward": reward})
    except Exception as error:  # noqa: BLE001
        fault("recording a reward", error)


def _is_score(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_LABEL
    return isinstance(value, (bool, int, float)) or getattr(value, "ndim", None) == 0


# --- which samples are traced ------------------------------------------------------------------------------


class _Row(dict):  # type: ignore[type-arg]
    """verl's description of a trajectory, and whether it is traced."""

    row: int
    is_chosen: bool


def _choosing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def get_trajectory_info(*args: Any, **kwargs: Any) -> Any:
        information = await original(*args, **kwargs)
        try:
            return _chosen(information) if is_ours() else information
        except Exception as error:  # noqa: BLE001 - all are traced
            fault("choosing which samples are traced", error)
            return information

    return get_trajectory_info


def _chosen(information: list[dict[str, Any]]) -> list[_Row]:
    """Mark the samples to be traced, with all siblings: all, or as many as verl's limit says."""
    samples = [batch.plain_index(entry["sample_index"]) for entry in information]
    different = list(dict.fromkeys(samples))
    limit = getattr(config(), "max_samples_per_step_per_worker", None)
    chosen = set(different if limit is None or limit >= len(different) else _random.sample(different, limit))
    rows = []
    for number, (entry, sample) in enumerate(zip(information, samples, strict=True)):
        row = _Row(entry)
        row.row = number
        row.is_chosen = sample in chosen
        rows.append(row)
    return rows


class _Like:
    """Something else in all but what a subclass says."""

    def __init__(self, other: Any) -> None:
        self.__dict__["other"] = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["other"], name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.__dict__["other"],)


class _WithoutLimit(_Like):
    """``RolloutTraceConfig`` as agent_loop.py sees it.

    It draws from NumPy's global generator where it finds a limit, and so changes what the training draws.
    """

    def get_instance(self) -> Any:
        """The configuration, without a limit where the choice is ours."""
        found = self.__dict__["other"].get_instance()
        return _Unlimited(found) if is_ours() else found


class _Unlimited(_Like):
    """A configuration whose limit does not show."""

    max_samples_per_step_per_worker = None
