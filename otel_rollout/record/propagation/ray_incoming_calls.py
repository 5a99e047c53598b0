"""Run Ray's tasks and actor methods in the caller's context.

Functions are wrapped where the worker looks them up, so their signatures and classes stay unchanged. The
wrapper removes the carrier from the arguments. It makes the carrier's context current during the call, or
during each step of a generator.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Coroutine, Generator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import orjson
from opentelemetry import context as otel_context

from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Function, Patches
from otel_rollout.record.capture import remote_call
from otel_rollout.record.capture.generator_driver import AsyncSteps, Steps
from otel_rollout.record.propagation import carrier, ray_later_runs
from otel_rollout.record.propagation.ray_outgoing_calls import ARGUMENT
from otel_rollout.record.propagation.ray_private_api import RayNames


def install(names: RayNames, patches: Patches) -> None:
    """Patch the method by which a worker looks up the function to run."""
    patches.replace(names.function_manager, "get_execution_info", _looking_up)


def _looking_up(original: Function) -> Function:
    @functools.wraps(original)
    def get_execution_info(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Ray calls this once per function and worker, and caches the result.
        information = original(self, *args, **kwargs)
        return information._replace(function=receiving(information.function))

    return get_execution_info


def receiving(function: Function) -> Function:
    """Wrap a function whose calls may have a carrier among their arguments."""

    # wraps() also copies the attributes by which Ray recognizes an actor's method (name, method).
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
    """Return the context in a carrier, and join the carrier's run. Never raises.

    Returns:
        None if the carrier has only a run id.
    """
    try:
        carried = orjson.loads(encoded)
        run_id = carried.pop(ray_later_runs.RUN_KEY, None)
        if run_id is not None:
            ray_later_runs.join(run_id)
        return carrier.extract(carried) if carried else None
    except Exception as error:  # noqa: BLE001 - the call runs without context
        fault("reading the context of a call of Ray's", error)
        return otel_context.Context()


def in_context(result: Any, context: otel_context.Context) -> Any:
    """Return a function's result; wrap a coroutine or generator to run in ``context``."""
    if isinstance(result, CoroutineType):
        return run_coroutine(result, context)
    if isinstance(result, GeneratorType):
        return run_generator(result, context)
    if isinstance(result, AsyncGeneratorType):
        return run_async_generator(result, context)
    remote_call.end(context)
    return result


async def run_coroutine(coroutine: Coroutine[Any, Any, Any], context: otel_context.Context) -> Any:
    """Await ``coroutine`` in ``context``.

    The context is not detached, because Ray runs each call as a separate asyncio task.
    """
    otel_context.attach(context)
    try:
        return await coroutine
    finally:
        remote_call.end(context)


def run_generator(
    generator: Generator[Any, Any, Any], context: otel_context.Context
) -> Generator[Any, Any, Any]:
    """Run each step of ``generator`` in ``context``, and pass on what is sent in."""
    steps = Steps(generator, context)
    while steps.advance():
        try:
            steps.send((yield steps.take()))
        except BaseException as error:  # noqa: BLE001 - the generator receives it
            steps.throw(error)
    return steps.value


async def run_async_generator(
    generator: AsyncGenerator[Any, Any], context: otel_context.Context
) -> AsyncGenerator[Any, Any]:
    """Run each step of ``generator`` in ``context``, and pass on what is sent in."""
    steps = AsyncSteps(generator, context)
    while await steps.advance():
        try:
            steps.send((yield steps.take()))
        except BaseException as error:  # noqa: BLE001 - the generator receives it
            steps.throw(error)
