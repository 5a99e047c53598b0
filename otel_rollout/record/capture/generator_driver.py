"""Drive a generator step by step, each step in the generator's own context.

Between two steps the consumer runs in its own context. No context token is held across a ``yield``: the
generator may be closed from another context, or never. All other context variables have the consumer's
values, as in any generator.

A generator function that forwards what its consumer sends is short::

    steps = Steps(generator, context)
    while steps.advance():
        try:
            steps.send((yield steps.take()))
        except BaseException as error:
            steps.throw(error)
    return steps.value

``GeneratorExit`` is forwarded like any other exception. So ``close()`` of the outer generator has the same
result as ``close()`` of the inner one.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Protocol

from opentelemetry.context import Context, attach, get_current

from otel_rollout.base.errors import fault
from otel_rollout.base.finalizers import COLLECTING, is_collecting


class Observer(Protocol):
    """Receives a generator's steps. An observer's exceptions are logged, not raised."""

    def yielded(self, item: Any) -> None:
        """Receive an item that the generator yielded."""

    def ended(self, value: Any, closed: bool) -> None:
        """Receive the returned value, or that the generator was closed before its end."""

    def failed(self, error: BaseException) -> None:
        """Receive an exception that left the generator."""


class _Steps:
    """The common part of :class:`Steps` and :class:`AsyncSteps`.

    Args:
        context: the context in which the generator runs; None: the consumer's context.
        observer: receives each step.
    """

    value: Any = None
    """The generator's return value."""

    def __init__(self, context: Context | None, observer: Observer | None = None) -> None:
        self._context = context
        self._observer = observer
        self._argument: Any = None
        self._throws = False
        self._item: Any = None

    def take(self) -> Any:
        """Return the item of the last step, and forget it."""
        item, self._item = self._item, None
        return item

    def send(self, value: Any) -> None:
        """Send a value with the next step."""
        self._throws, self._argument = False, value

    def throw(self, error: BaseException) -> None:
        """Throw an exception with the next step."""
        self._throws, self._argument = True, error

    def run(self, step: Callable[[Any], Any], argument: Any) -> Any:
        """Call ``step`` in the generator's context; save the context for the next step.

        A generator that the garbage collector closes runs in the context of what the collector interrupts.
        """
        if self._context is None or (COLLECTING and is_collecting()):
            return step(argument)
        outside = get_current()
        attach(self._context)
        try:
            return step(argument)
        finally:
            self._context = get_current()
            attach(outside)
            del argument  # may be an exception, whose traceback refers to this frame

    def _yielded(self, item: Any) -> None:
        self._item = item
        if self._observer is not None:
            try:
                self._observer.yielded(item)
            except Exception as error:  # noqa: BLE001
                fault("recording an item of a generator", error)

    def _ended(self, value: Any, closed: bool) -> None:
        self.value = value
        if self._observer is not None:
            try:
                self._observer.ended(value, closed)
            except Exception as error:  # noqa: BLE001
                fault("recording the end of a generator", error)

    def _failed(self, error: BaseException, closed: bool) -> None:
        if self._observer is not None:
            try:
                if closed and isinstance(error, GeneratorExit):
                    self._observer.ended(None, True)
                else:
                    self._observer.failed(error)
            except Exception as internal:  # noqa: BLE001
                fault("recording the exception of a generator", internal)


class Steps(_Steps):
    """The steps of a generator."""

    def __init__(
        self, generator: Generator[Any, Any, Any], context: Context | None, observer: Observer | None = None
    ) -> None:
        super().__init__(context, observer)
        self._generator = generator

    def advance(self) -> bool:
        """Make a step; False after the last. The generator's exceptions are passed on."""
        step = self._generator.throw if self._throws else self._generator.send
        closed = self._throws and isinstance(self._argument, GeneratorExit)
        argument, self._argument = self._argument, None
        try:
            self._yielded(self.run(step, argument))
            return True
        except StopIteration as stop:
            self._ended(stop.value, closed)
            return False
        except BaseException as error:
            self._failed(error, closed)
            raise
        finally:
            del argument


class AsyncSteps(_Steps):
    """The steps of an asynchronous generator; each step is awaited."""

    def __init__(
        self, generator: AsyncGenerator[Any, Any], context: Context | None, observer: Observer | None = None
    ) -> None:
        super().__init__(context, observer)
        self._generator = generator
        self._has_started = False

    async def advance(self) -> bool:
        """Make a step; False after the last. The generator's exceptions are passed on."""
        closed = self._throws and isinstance(self._argument, GeneratorExit)
        try:
            self._yielded(await _Awaited(self, self._step()))
            return True
        except StopAsyncIteration:
            self._ended(None, closed)
            return False
        except BaseException as error:
            self._failed(error, closed)
            raise

    def _step(self) -> Awaitable[Any]:
        argument, self._argument = self._argument, None
        if self._has_started:
            return self._generator.athrow(argument) if self._throws else self._generator.asend(argument)
        # An event loop closes every generator whose first step it sees. The wrapper closes this generator,
        # and a second `aclose` would raise. So hide the first step from the loop. The garbage collector, too,
        # leaves the generator to the wrapper: the collector would close it outside the loop, where no cleanup
        # can await anything.
        self._has_started = True
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, _leave_to_wrapper)
        try:
            return self._generator.asend(argument)
        finally:
            sys.set_asyncgen_hooks(*hooks)


def _leave_to_wrapper(generator: AsyncGenerator[Any, Any]) -> None:
    """Do nothing, as the finalizer of a generator that its wrapper closes."""


class _Awaited:
    """Awaits a step of an asynchronous generator in the generator's context."""

    __slots__ = ("_awaitable", "_steps")

    def __init__(self, steps: _Steps, awaitable: Awaitable[Any]) -> None:
        self._steps = steps
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        run, inner = self._steps.run, self._awaitable.__await__()
        step: Callable[[Any], Any] = inner.send
        argument: Any = None
        while True:
            try:
                awaited = run(step, argument)
            except StopIteration as stop:
                return stop.value
            finally:
                argument = None
            try:
                step, argument = inner.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - thrown into the generator: a cancellation, say
                step, argument = inner.throw, error
