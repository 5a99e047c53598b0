"""Read plain values from a file that ``torch.save`` wrote, without torch and without running its code.

Such a file is a zip with a pickle. A pickle may call any function when it is loaded. This reader allows only
``OrderedDict``, and stand-ins for the functions that make tensors. A pickle that names another function or
class is refused.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from otel_rollout.look.errors import ViewerError

_CONTENT: Final = "/data.pkl"
_MAX_BYTES: Final = 2 << 30


class _PlainUnpickler(pickle.Unpickler):
    """Loads values of built-in types; a tensor becomes None."""

    def find_class(self, module: str, name: str) -> Any:
        """Return ``OrderedDict``, or a stand-in for what makes a tensor.

        Raises:
            pickle.UnpicklingError: the pickle names another function or class.
        """
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name.startswith("_rebuild_tensor"):
            return lambda *_: None
        if module == "torch" and name.endswith("Storage"):
            return None
        raise pickle.UnpicklingError(f"it needs {module}.{name}")

    def persistent_load(self, pid: Any) -> None:
        """Return None in place of a tensor's numbers, which are in other files of the zip."""


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of slime's file, each with the number of its rollout.

    Raises:
        ViewerError: the file holds other values than plain ones, or cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((each for each in archive.namelist() if each.endswith(_CONTENT)), None)
            if name is None:
                return
            if archive.getinfo(name).file_size > _MAX_BYTES:
                raise ValueError(f"they have more than {_MAX_BYTES >> 30} GiB")
            with archive.open(name) as file:
                found = _PlainUnpickler(file).load()
    except Exception as error:
        raise ViewerError(f"{path} is not opened: its values are not plain ones: {error}.") from error
    samples = found.get("samples") if isinstance(found, Mapping) else None
    for sample in samples if isinstance(samples, list) else ():
        if isinstance(sample, dict):
            yield {**sample, "of_rollout": found.get("rollout_id")}
