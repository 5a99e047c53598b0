"""The decoders of a run's tokenizers, which may be being written when spans name them."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import Final

from otel_rollout.forwarder.detokenizer import Decoder
from otel_rollout.spool import layout

PATIENCE: Final = 10.0
"""Seconds after the end of a span that are waited for the tokenizer it names."""
_LOOK_INTERVAL: Final = 5.0
_POLL: Final = 0.1
_MAX_DECODERS: Final = 8
_logger = logging.getLogger("otel_rollout.forwarder")


class Decoders:
    """Decoders by the names that spans give. Threads of several exporters share them.

    Args:
        node_dir: has the tokenizers.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._found: dict[str, Decoder] = {}
        self._next_look: dict[str, float] = {}
        self._past = 0
        self._lock = threading.Lock()

    @property
    def decoded(self) -> int:
        """Tokens decoded so far."""
        return self._past + sum(decoder.decoded for decoder in self._found.values())

    def get(self, name: str, ended: float) -> Decoder | None:
        """The decoder a span names, which ended at ``ended``; None, and a warning, if there is none."""
        with self._lock:
            return self._get(name, ended)

    def _get(self, name: str, ended: float) -> Decoder | None:
        if name in self._found:
            return self._found[name]
        if time.monotonic() < self._next_look.get(name, -math.inf):
            return None
        # Clocks are set, and a span may claim to end next year: nobody waits for longer than from now on.
        deadline = min(ended, time.time()) + PATIENCE
        decoder = self._loaded(name, 0.0 if name in self._next_look else deadline)
        if decoder is None:
            self._next_look[name] = time.monotonic() + _LOOK_INTERVAL
            while len(self._next_look) > _MAX_DECODERS:
                del self._next_look[next(iter(self._next_look))]
            return None
        self._found[name] = decoder
        while len(self._found) > _MAX_DECODERS:
            self._past += self._found.pop(next(iter(self._found))).decoded
        return decoder

    def _loaded(self, name: str, deadline: float) -> Decoder | None:
        path = layout.tokenizer_file(self._node_dir, name)
        while not path.exists() and time.time() < deadline:
            time.sleep(_POLL)
        problem: object = f"{path} is not there"
        try:
            decoder = Decoder.stored(self._node_dir, name)
            if decoder is not None:
                return decoder
        except ImportError:
            problem = "it needs the library tokenizers: pip install 'otel-rollout[tokens]'"
        except Exception as error:  # noqa: BLE001 - a file that holds no tokenizer
            problem = error
        if name not in self._next_look:
            _logger.warning("token ids stay without their text: %s", problem)
        return None
