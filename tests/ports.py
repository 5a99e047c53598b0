"""TCP ports for servers that tests start."""

from __future__ import annotations

import random
import socket

# Above Ray's, and below those that Linux gives to whoever asks for none: nobody takes one before the server
# does, nor while the server is being started again.
_PORTS = range(20000, 32768)
_given: set[int] = set()


def free_port() -> int:
    """Return a free TCP port of the loopback that was not returned before."""
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
