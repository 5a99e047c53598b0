"""Decorate functions with ``rollout_trace_attr``: each call is a trajectory."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from opentelemetry import context as otel_context

from otel_rollout.base.finalizers import attach
from otel_rollout.record.capture.generator_driver import AsyncSteps, Steps
from otel_rollout.record.capture.generators import fitting, generate_wrapper
from otel_rollout.record.recording.entered import EnteredTrajectory
from otel_rollout.record.recording.state import state

Function = TypeVar("Function", bound=Callable[..., Any])


def decorate(trajectory: EnteredTrajectory, function: Function) -> Function:
    """Wrap a function so that each call is a trajectory like ``trajectory``.

    Raises:
        TypeError: for an object that is no function.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return cast("Function", type(function)(decorate(trajectory, function.__func__)))
    if not callable(function) or inspect.isclass(function):
        raise TypeError(
            f"rollout_trace_attr: {function!r} is not a function. Mark a block, "
            "`with rollout_trace_attr(step=1):`, or a function, `@rollout_trace_attr(step=1)`"
        )
    wrappers = (_function, _coroutine, _generator, _async_generator)
    return cast("Function", fitting(function, wrappers)(trajectory, function))


def _function(trajectory: EnteredTrajectory, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with trajectory.another():
            return function(*args, **kwargs)

    return call


def _coroutine(trajectory: EnteredTrajectory, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with trajectory.another():
            return await function(*args, **kwargs)

    return call


def _generator(trajectory: EnteredTrajectory, function: Callable[..., Any]) -> Callable[..., Any]:
    return generate_wrapper(function, "def", functools.partial(_start_steps, Steps, trajectory, function))


def _async_generator(trajectory: EnteredTrajectory, function: Callable[..., Any]) -> Callable[..., Any]:
    return generate_wrapper(
        function, "async def", functools.partial(_start_steps, AsyncSteps, trajectory, function)
    )


def _start_steps(
    steps: type[Steps | AsyncSteps],
    trajectory: EnteredTrajectory,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Steps | AsyncSteps:
    """Start a generator's trajectory at its first step; the consumer stays outside."""
    if state.off:
        return steps(function(*args, **kwargs), None)
    outside = otel_context.get_current()
    block = trajectory.another()
    block.__enter__()
    inside = otel_context.get_current()
    attach(outside)
    try:
        return steps(function(*args, **kwargs), inside, _Ending(block))
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise


class _Ending:
    """Ends a trajectory when its generator ends."""

    def __init__(self, trajectory: AbstractContextManager[object]) -> None:
        self._trajectory = trajectory

    def yielded(self, item: Any) -> None:
        """Do nothing: items are not recorded."""

    def ended(self, value: Any, closed: bool) -> None:
        """End the trajectory: the generator returned, or was closed."""
        self._trajectory.__exit__(None, None, None)

    def failed(self, error: BaseException) -> None:
        """End the trajectory with an exception that left the generator."""
        self._trajectory.__exit__(type(error), error, error.__traceback__)
