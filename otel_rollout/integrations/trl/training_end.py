"""Record what training has left over when it ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout._state import process
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.trl.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the method of transformers' trainer that trains (``transformers.trainer``)."""
    loss = "whether TRL's trainers used the last batch is not recorded"
    seams.wrap(module, "Trainer.train", _closing, loss)


def _closing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        has_failed = True
        try:
            result = original(self, *args, **kwargs)
            has_failed = False
            return result
        finally:
            with internal_errors("recording what TRL's training has left over"):
                progress = process.trainers.get(self)
                if progress is not None:
                    progress.uses.close(has_failed)

    return train
