"""The receiving side: what a worker runs, it runs in the context that came with the call.

Functions are wrapped where the worker looks them up, so their signatures and classes stay as they are. The
wrapper takes the carrier off and makes its context current for the call; for generators that means: for
each of their steps.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import orjson
from opentelemetry import context as otel_context

from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Patches
from otel_rollout.capture import remote_call
from otel_rollout.capture.generator_driver import AsyncSteps, Steps
from otel_rollout.propagation import carrier, ray_runs
from otel_rollout.propagation.ray_names import RayNames
from otel_rollout.propagation.ray_send import ARGUMENT

Function = Callable[..., Any]


def install(names: RayNames, patches: Patches) -> None:
    """Patch the place where a worker looks up what to run."""
    patches.replace(names.function_manager, "get_execution_info", _looking_up)


def _looking_up(original: Function) -> Function:
    @functools.wraps(original)
    def get_execution_info(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Ray asks once per function and worker, and remembers the answer.
        found = original(self, *args, **kwargs)
        return found._replace(function=receiving(found.function))

    return get_execution_info


def receiving(function: Function) -> Function:
    """Wrap a function that may be called with a carrier; called without, it is as it was."""

    # wraps() also copies the attributes by which Ray knows an actor's method (name, method).
    @functools.wraps(function)
    def receive(*args: Any, **kwargs: Any) -> Any:
        encoded = kwargs.pop(ARGUMENT, None)
        if encoded is None:
            return function(*args, **kwargs)
        context = decode(encoded)
        if context is None:
            return function(*args, **kwargs)
        context = remote_call.start(context)
        token = otel_context.attach(context)
        try:
            result = function(*args, **kwargs)
        except BaseException:
            remote_call.end(context)
            raise
        finally:
            otel_context.detach(token)
        return in_context(result, context)

    return receive


def decode(encoded: bytes) -> otel_context.Context | None:
    """The context that came with a call; None where it came to name a run alone. Never raises."""
    try:
        carried = orjson.loads(encoded)
        run = carried.pop(ray_runs.RUN_KEY, None)
        if run is not None:
            ray_runs.follow(run)
        return carrier.extract(carried) if carried else None
    except Exception as error:  # noqa: BLE001 - the call runs without context
        fault("reading the context of a call of Ray's", error)
        return otel_context.Context()


def in_context(result: Any, context: otel_context.Context) -> Any:
    """What a call gave: where that has yet to run, something that runs it in ``context``."""
    if isinstance(result, CoroutineType):
        return run_coroutine(result, context)
    if isinstance(result, GeneratorType):
        return run_generator(result, context)
    if isinstance(result, AsyncGeneratorType):
        return run_async_generator(result, context)
    remote_call.end(context)
    return result


async def run_coroutine(coroutine: Coroutine[Any, Any, Any], context: otel_context.Context) -> Any:
    """Await ``coroutine``. Ray runs each call as a task of its own, whose context this is."""
    otel_context.attach(context)
    try:
        return await coroutine
    finally:
        remote_call.end(context)


def run_generator(
    generator: Generator[Any, Any, Any], context: otel_context.Context
) -> Generator[Any, Any, Any]:
    """Iterate over ``generator``, passing on all that generators can be told."""
    steps = Steps(generator, context)
    while steps.advance():
        try:
            steps.send((yield steps.take()))
        except BaseException as error:  # noqa: BLE001 - on its way to the generator
            steps.throw(error)
    return steps.value


async def run_async_generator(
    generator: AsyncGenerator[Any, Any], context: otel_context.Context
) -> AsyncGenerator[Any, Any]:
    """Iterate over ``generator``, passing on all that asynchronous generators can be told."""
    steps = AsyncSteps(generator, context)
    while await steps.advance():
        try:
            steps.send((yield steps.take()))
        except BaseException as error:  # noqa: BLE001 - on its way to the generator
            steps.throw(error)
