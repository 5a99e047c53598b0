"""Load a run's tokenizers once; wait for a tokenizer that is still being written."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import Final

from otel_rollout.base.waits import wait_until, waits
from otel_rollout.forwarder.detokenizer import Detokenizer
from otel_rollout.spool import layout

_MAX_DETOKENIZERS: Final = 8
_logger = logging.getLogger("otel_rollout.forwarder")


class DetokenizerCache:
    """Caches detokenizers by name. Several threads may use it.

    Args:
        node_dir: holds the tokenizers.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._loaded: dict[str, Detokenizer] = {}
        self._next_look: dict[str, float] = {}
        self._decoded_before = 0
        self._lock = threading.Lock()

    @property
    def decoded(self) -> int:
        """Tokens decoded so far."""
        return self._decoded_before + sum(detokenizer.decoded for detokenizer in self._loaded.values())

    def get(self, name: str, end: float) -> Detokenizer | None:
        """Return the detokenizer named by a span that ended at Unix time ``end``.

        Return None, with a warning, if the tokenizer is missing or cannot be used.
        """
        loaded = self._loaded.get(name)  # without the lock, which a wait for another tokenizer may hold
        if loaded is not None:
            return loaded
        with self._lock:
            return self._get(name, end)

    def _get(self, name: str, end: float) -> Detokenizer | None:
        if name in self._loaded:
            return self._loaded[name]
        if time.monotonic() < self._next_look.get(name, -math.inf):
            return None
        # A wrong clock may put a span's end into the future: wait no longer than for one from now.
        deadline = min(end, time.time()) + waits().tokenizer
        detokenizer = self._load(name, 0.0 if name in self._next_look else deadline)
        if detokenizer is None:
            self._next_look[name] = time.monotonic() + waits().absent
            while len(self._next_look) > _MAX_DETOKENIZERS:
                del self._next_look[next(iter(self._next_look))]
            return None
        self._loaded[name] = detokenizer
        while len(self._loaded) > _MAX_DETOKENIZERS:
            self._decoded_before += self._loaded.pop(next(iter(self._loaded))).decoded
        return detokenizer

    def _load(self, name: str, deadline: float) -> Detokenizer | None:
        path = layout.tokenizer_file(self._node_dir, name)
        wait_until(path.exists, deadline - time.time())
        problem: object = f"{path} does not exist"
        try:
            detokenizer = Detokenizer.stored(self._node_dir, name)
            if detokenizer is not None:
                return detokenizer
        except ImportError:
            problem = "it needs the library tokenizers: pip install 'otel-rollout[tokens]'"
        except Exception as error:  # noqa: BLE001 - a file that holds no tokenizer
            problem = error
        if name not in self._next_look:
            _logger.warning("token ids are exported without their text: %s", problem)
        return None
