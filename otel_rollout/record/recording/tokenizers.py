"""Write the tokenizers of recorded token ids into the node directory, each once.

The forwarder detokenizes with these files. A tokenizer's name is a digest of a part of its content. This part
is enough to tell tokenizers apart, and takes well under a millisecond to read. While a large tokenizer
serializes itself, all other threads wait. So a thread reads the tokenizer token by token, unless another
process has written it, and omits what detokenizing does not need.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout.base.errors import pass_on, warn_once
from otel_rollout.spool import layout

MAX_TOKENIZERS: Final = 16
"""Maximum number of tokenizers of one process, which keeps them in memory until its end."""
_SAMPLES: Final = 1024
"""Approximate number of vocabulary tokens in the digest that names a tokenizer. The digest also has all added
tokens."""
_SLICE: Final = 1000
"""Number of tokens read at once, while other threads wait for the GIL."""
_PAUSE: Final = 0.0005
"""Seconds between two reads, in which other threads run."""
_FILE: Final = "tokenizer.json"


class Tokenizers:
    """The tokenizers of one process.

    Args:
        node_dir: the node directory of the spans that name the tokenizers.
        default: the tokenizer for operations without a tokenizer: a file or directory, or the name of a model
            in this machine's Hugging Face cache.
    """

    def __init__(self, node_dir: Path, default: str = "") -> None:
        self._node_dir = node_dir
        self._default = default
        self._default_name: str | None = None
        self._known: dict[int, tuple[Any, str | None]] = {}
        self._writers: list[threading.Thread] = []

    def name_of(self, tokenizer: Any) -> str | None:
        """Return the name of a tokenizer; for None, the name of the default tokenizer.

        The first call for a tokenizer writes it. For a tokenizer that cannot be used, a warning is logged and
        None is returned. Nothing is raised.
        """
        if tokenizer is None:
            return self._name_of_default() if self._default else None
        known = self._known.get(id(tokenizer))
        if known is not None:
            return known[1]
        name = None
        try:
            if len(self._known) >= MAX_TOKENIZERS:
                warn_once(
                    f"more than {MAX_TOKENIZERS} tokenizers in one process; ids of the others get no text"
                )
                return None
            backend = _backend(tokenizer)
            if backend is None:
                type_name = type(tokenizer).__qualname__
                warn_once(f"token2text needs a fast tokenizer, which {type_name} is not; ids get no text")
            else:
                name = _name(backend)
                self._write(name, lambda: b"".join(_json_of(backend)))
        except Exception as error:  # noqa: BLE001 - a user's tokenizer
            pass_on(error)
            warn_once(f"token2text cannot use a tokenizer: {type(error).__name__}: {error}; ids get no text")
        self._known[id(tokenizer)] = (tokenizer, name)
        return name

    def finish(self, timeout: float) -> None:
        """Wait until all tokenizers are written, at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._writers:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _name_of_default(self) -> str | None:
        if self._default_name is None:
            name = ""
            try:
                path = _local_file(self._default)
                if path is None:
                    warn_once(
                        f"OTEL_ROLLOUT_TOKENIZER={self._default!r}: no {_FILE} there, nor in this machine's "
                        "Hugging Face cache; nothing is downloaded, ids get no text. Give such a file's path"
                    )
                else:
                    state = path.stat()
                    version = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
                    name = hashlib.sha256(version.encode()).hexdigest()[:32]
                    self._write(name, path.read_bytes)
            except Exception as error:  # noqa: BLE001
                pass_on(error)
                warn_once(f"OTEL_ROLLOUT_TOKENIZER={self._default!r} is unusable: {error}; ids get no text")
            self._default_name = name  # last, because another thread may read it
        return self._default_name or None

    def _write(self, name: str, content: Callable[[], bytes]) -> None:
        target = layout.tokenizer_file(self._node_dir, name)
        if target.exists():
            return

        def write() -> None:
            try:
                target.parent.mkdir(mode=0o700, exist_ok=True)
                layout.write_whole(target, content())
            except Exception as error:  # noqa: BLE001 - a full disk, or a tokenizer that another thread changes
                warn_once(f"a tokenizer could not be written to {target}: {error}; ids get no text")

        thread = threading.Thread(target=write, name="otel-rollout-tokenizer", daemon=True)
        thread.start()
        self._writers.append(thread)


def _backend(tokenizer: Any) -> Any:
    """Return the object of library ``tokenizers`` behind a tokenizer or processor; None without one."""
    for candidate in (tokenizer, getattr(tokenizer, "tokenizer", None)):
        backend = getattr(candidate, "backend_tokenizer", candidate)
        if type(backend).__module__.partition(".")[0] == "tokenizers" and hasattr(backend, "id_to_token"):
            return backend
    return None


def _name(backend: Any) -> str:
    size = backend.get_vocab_size()
    sample = [backend.id_to_token(number) for number in range(0, size, max(1, size // _SAMPLES))]
    content = repr((size, sample, _added(backend), _decoder(backend)))
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:32]


def _added(backend: Any) -> list[dict[str, Any]]:
    tokens = sorted(backend.get_added_tokens_decoder().items())
    return [{"id": number, **token.__getstate__()} for number, token in tokens]


def _decoder(backend: Any) -> bytes:
    """Return a tokenizer's decoder, which converts tokens to text, as JSON."""
    return b"null" if backend.decoder is None else bytes(backend.decoder.__getstate__())


def _json_of(backend: Any) -> Iterator[bytes]:
    """Yield, in pieces, the JSON of a tokenizer that only decodes, and decodes as ``backend`` does."""
    yield b'{"version":"1.0","truncation":null,"padding":null,"added_tokens":'
    yield orjson.dumps(_added(backend))
    yield b',"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":'
    yield _decoder(backend)
    yield b',"model":{"type":"WordLevel","unk_token":"","vocab":{'
    # An id may exceed the number of tokens, because ids may have gaps.
    highest = max([backend.get_vocab_size() - 1, *backend.get_added_tokens_decoder()])
    separator = b""
    for start in range(0, highest + 1, _SLICE):
        tokens = (
            (number, backend.id_to_token(number)) for number in range(start, min(start + _SLICE, highest + 1))
        )
        part = {token: number for number, token in tokens if token is not None}
        if part:
            yield separator + orjson.dumps(part)[1:-1]
            separator = b","
        time.sleep(_PAUSE)
    yield b"}}}"


def _local_file(default: str) -> Path | None:
    """Return a tokenizer's file by path, directory or name of a downloaded model; None if there is none."""
    path = Path(default).expanduser()
    for candidate in (path, path / _FILE):
        if candidate.is_file():
            return candidate
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", default):
        return None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    downloaded = cache / f"models--{default.replace('/', '--')}" / "snapshots"
    found = [snapshot / _FILE for snapshot in downloaded.glob("*") if (snapshot / _FILE).is_file()]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)
