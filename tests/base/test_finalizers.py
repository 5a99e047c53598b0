"""Context variables are left alone in a collection, and by a block that is closed in another context."""

import contextvars
import gc
import sys
import threading
from contextvars import ContextVar

import pytest
from opentelemetry import context as otel_context

from otel_rollout.base import finalizers

VARIABLE: ContextVar[str] = ContextVar("variable", default="outside")


class Finalized:
    """Lies in a cycle, and notes what its finalizer sees."""

    def __init__(self, notes: list[object]) -> None:
        self.itself = self
        self.notes = notes

    def __del__(self) -> None:
        elsewhere = threading.Thread(target=lambda: self.notes.append(finalizers.is_collecting()))
        elsewhere.start()
        elsewhere.join()
        self.notes.append(finalizers.is_collecting())
        finalizers.set_variable(VARIABLE, "set")
        self.notes.append((finalizers.attach(otel_context.Context({"a": 1})), VARIABLE.get()))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a collection interrupts no call of C functions")
def test_context_stays_as_it_is_in_a_collection() -> None:
    """Only the thread that collects is inside the collection."""
    finalizers.watch_collections()
    finalizers.watch_collections()
    notes: list[object] = []
    Finalized(notes)
    before = otel_context.get_current()
    gc.collect()
    assert notes == [False, True, (None, "outside")]
    assert otel_context.get_current() is before
    assert (finalizers.is_collecting(), finalizers.COLLECTING) == (False, set())


def test_block_that_is_closed_in_another_context_changes_neither() -> None:
    """It does not raise, as a token would."""

    def blocks():
        with (
            finalizers.variable_set(VARIABLE, "inside"),
            finalizers.current_context(otel_context.Context({"inside": 1})),
        ):
            yield

    def opened():
        next(running)
        return VARIABLE.get(), otel_context.get_value("inside")

    def closed_elsewhere():
        VARIABLE.set("another")
        running.close()
        return VARIABLE.get()

    running, context = blocks(), contextvars.copy_context()
    assert context.run(opened) == ("inside", 1)
    assert contextvars.copy_context().run(closed_elsewhere) == "another"
    assert context[VARIABLE] == "inside"


def test_block_restores_what_was_before() -> None:
    """After an exception, too."""
    with finalizers.variable_set(VARIABLE, "inside"):
        with pytest.raises(ValueError, match="mine"), finalizers.variable_set(VARIABLE, "innermost"):
            raise ValueError("mine")
        assert VARIABLE.get() == "inside"
    assert VARIABLE.get() == "outside"
