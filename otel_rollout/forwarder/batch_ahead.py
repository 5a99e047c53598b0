"""Prepare a batch in a thread of its own, while the batch before it is sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from otel_rollout.forwarder.batch_sender import PreparedBatch
from otel_rollout.forwarder.lines import Line


class BatchAhead:
    """A batch that is being prepared.

    Nothing depends on it: without it, the same lines are read and prepared again.

    Args:
        lines: lines of the batch.
        prepare: decodes and encodes the lines; called in a thread, and again if it raises there.

    Attributes:
        lines: as given.
    """

    def __init__(self, lines: Sequence[Line], prepare: Callable[[Sequence[Line]], PreparedBatch]) -> None:
        self.lines = lines
        self._prepare = prepare
        self._prepared: PreparedBatch | None = None
        self._thread = threading.Thread(target=self._run, name="prepare-batch", daemon=True)
        with contextlib.suppress(RuntimeError):  # the machine has no thread left
            self._thread.start()

    def batch(self) -> PreparedBatch:
        """Return the batch; wait until it is prepared."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._prepared or self._prepare(self.lines)

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # raised again where the delivery handles it
            self._prepared = self._prepare(self.lines)
