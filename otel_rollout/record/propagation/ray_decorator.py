"""Continue trajectories in decorated classes and functions, without patching Ray.

The decorator sets ``__ray_invocation_decorator__``, a hook by which Ray lets a function change how it is
called. No private name of Ray's is needed. The price: each class and function must be decorated, its
signature gets one more parameter, and each process that uses its handle needs this package. Constructors and
``__ray_call__`` carry no context, since Ray ignores the hook there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeVar

import orjson

from otel_rollout.base.patching import Function
from otel_rollout.record.capture.generator_driver import AsyncSteps
from otel_rollout.record.propagation.ray_incoming_calls import receiving
from otel_rollout.record.propagation.ray_outgoing_calls import ARGUMENT, carrier_of_call

Decorated = TypeVar("Decorated", bound=Function)


def carry_context(decorated: Decorated) -> Decorated:
    """Continue the caller's trajectory in a Ray task or the methods of a Ray actor.

    Put the decorator below ``@ray.remote``. The workers need this package::

        @ray.remote
        @carry_context
        class Server: ...

    Args:
        decorated: the function of a task, or the class of an actor. The methods of the class are replaced.
    """
    if not inspect.isclass(decorated):
        return _carrying(decorated)  # type: ignore[return-value] # a function with the same parameters
    for name in dir(decorated):
        if name.startswith("__"):
            continue
        member = inspect.getattr_static(decorated, name)
        if isinstance(member, (staticmethod, classmethod)):
            setattr(decorated, name, type(member)(_carrying(member.__func__)))
        elif inspect.isfunction(member):
            setattr(decorated, name, _carrying(member))
    return decorated


def _carrying(function: Function) -> Function:
    if hasattr(function, "__ray_invocation_decorator__"):
        return function
    wrapper = functools.wraps(function)(_wrapper(function))
    # Ray reads the signature through __wrapped__, and would miss the added parameter.
    del wrapper.__wrapped__
    wrapper.__signature__ = _with_argument(inspect.signature(function))  # type: ignore[attr-defined]
    wrapper.__ray_invocation_decorator__ = _invoking  # type: ignore[attr-defined]
    return wrapper


def _wrapper(function: Function) -> Function:
    """Wrap a function in one of the same type: plain, coroutine, generator or asynchronous generator.

    Ray decides by the type how to run a function.
    """
    receive = receiving(function)
    if inspect.iscoroutinefunction(function):

        async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
            return await receive(*args, **kwargs)

        return call_coroutine
    if inspect.isgeneratorfunction(function):

        def call_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from receive(*args, **kwargs))

        return call_generator
    if inspect.isasyncgenfunction(function):

        async def call_async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            steps = AsyncSteps(receive(*args, **kwargs), None)
            while await steps.advance():
                try:
                    steps.send((yield steps.take()))
                except BaseException as error:  # noqa: BLE001 - the generator receives it
                    steps.throw(error)

        return call_async_generator

    return receive


def _with_argument(signature: inspect.Signature) -> inspect.Signature:
    """Return ``signature`` with the carrier as a keyword-only parameter."""
    parameters = list(signature.parameters.values())
    added = inspect.Parameter(ARGUMENT, inspect.Parameter.KEYWORD_ONLY, default=None)
    takes_any = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    parameters.insert(len(parameters) - takes_any, added)
    return signature.replace(parameters=parameters)


def _invoking(invocation: Function) -> Function:
    """Wrap ``invocation``, which sends a call, to add the carrier to the call."""

    def invoke(args: Any, kwargs: Any) -> Any:
        carried = carrier_of_call()
        if carried is not None:
            kwargs = {**(kwargs or {}), ARGUMENT: orjson.dumps(carried)}
        return invocation(args, kwargs)

    return invoke
