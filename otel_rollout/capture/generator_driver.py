"""Generators, step by step, each step with an OTel context current that is the generator's own.

Between its steps a generator's consumer is where it was: no context token is held across a ``yield``, for
the consumer goes on to other things, and the generator may be closed from elsewhere, or never. All other
context variables are the consumer's, as for any generator.

A generator function that passes on what its consumer tells it is short::

    steps = Steps(generator, context)
    while steps.advance():
        try:
            steps.send((yield steps.take()))
        except BaseException as error:
            steps.throw(error)
    return steps.value

``GeneratorExit`` is passed on like any other exception: what the generator makes of it is then what
``close()`` makes of the one around it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Protocol

from opentelemetry import context as otel_context

from otel_rollout.base.errors import fault


class Observer(Protocol):
    """Is told what a generator does. What it raises is reported and goes no further."""

    def yielded(self, item: Any) -> None:
        """The generator gave ``item``."""

    def ended(self, value: Any, closed: bool) -> None:
        """The generator returned ``value``, or was ``closed`` before."""

    def failed(self, error: BaseException) -> None:
        """``error`` left the generator."""


class _Steps:
    """What both kinds of generator have in common.

    Args:
        context: current while the generator runs; None: whatever is.
        observer: told what comes of each step.
    """

    value: Any = None
    """What the generator returned."""

    def __init__(self, context: otel_context.Context | None, observer: Observer | None = None) -> None:
        self._context = context
        self._observer = observer
        self._argument: Any = None
        self._throws = False
        self._item: Any = None

    def take(self) -> Any:
        """The item of the step just made. It is not kept."""
        item, self._item = self._item, None
        return item

    def send(self, value: Any) -> None:
        """The next step sends ``value``."""
        self._throws, self._argument = False, value

    def throw(self, error: BaseException) -> None:
        """The next step throws ``error``."""
        self._throws, self._argument = True, error

    def run(self, step: Callable[[Any], Any], argument: Any) -> Any:
        """Call ``step`` in the generator's context, and keep what it makes of it for the next one."""
        if self._context is None:
            return step(argument)
        outside = otel_context.get_current()
        otel_context.attach(self._context)
        try:
            return step(argument)
        finally:
            self._context = otel_context.get_current()
            otel_context.attach(outside)
            del argument  # an exception, whose traceback has this frame

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
        self,
        generator: Generator[Any, Any, Any],
        context: otel_context.Context | None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(context, observer)
        self._generator = generator

    def advance(self) -> bool:
        """Make a step; False when the generator has returned. What it raises goes to the consumer."""
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
    """The steps of an asynchronous generator, each of which is made step by step itself."""

    def __init__(
        self,
        generator: AsyncGenerator[Any, Any],
        context: otel_context.Context | None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(context, observer)
        self._generator = generator
        self._begun = False

    async def advance(self) -> bool:
        """Make a step; False when the generator has returned. What it raises goes to the consumer."""
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
        if self._begun:
            return self._generator.athrow(argument) if self._throws else self._generator.asend(argument)
        # The event loop closes the generators it has seen begin. It sees the one around this, which is
        # what closes this one; closed by both at once, this one would complain.
        self._begun = True
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            return self._generator.asend(argument)
        finally:
            sys.set_asyncgen_hooks(*hooks)


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
            except BaseException as error:  # noqa: BLE001 - on its way to the generator: a cancellation, say
                step, argument = inner.throw, error
