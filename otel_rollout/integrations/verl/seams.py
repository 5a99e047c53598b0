"""Where verl is added to: which of its modules, by which of ours, and what is lost where a name is missing.

verl has no hooks for most of this, so functions are wrapped by name. A version that lacks one loses what the
seam covers, is told so once, and is traced as far as the other seams go.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from otel_rollout.base.errors import fault
from otel_rollout.integrations.verl.imports import when_imported

_logger = logging.getLogger("otel_rollout")
_HERE: Final = __package__

UNCONFIGURED: Final = {"verl.trainer.constants_ppo": "launching", "verl.utils.rollout_trace": "unasked"}
"""verl's module → ours that adds to it, in a process where nothing says that tracing is wanted."""
ALL: Final = {
    "verl.trainer.constants_ppo": "launching",
    "verl.utils.rollout_trace": "surface",
    "verl.utils.tracking": "tracking",
    "verl.experimental.agent_loop.agent_loop": "trajectory",
    "verl.trainer.ppo.v1.agent_loop_tq": "batch",
    "verl.experimental.agent_loop.tool_agent_loop": "tools",
    "verl.experimental.agent_loop.tool_parser": "caught",
    "verl.workers.rollout.llm_server": "engine",
    "vllm.v1.engine.async_llm": "vllm",
}
"""The same where tracing is on."""

Wrap = Callable[[Callable[..., Any]], Any]


def wait_for(seams: dict[str, str]) -> None:
    """Add to each module as soon as it has been imported."""
    for name, ours in seams.items():
        when_imported(name, lambda module, ours=ours: _add(module, ours))  # type: ignore[misc]


def _add(module: ModuleType, ours: str) -> None:
    try:
        importlib.import_module(f"{_HERE}.{ours}").install(module)
    except Exception as error:  # noqa: BLE001 - verl goes on without it
        fault(f"adding to {module.__name__} of verl {version()}", error)


def wrap(module: ModuleType, path: str, wrapper: Wrap, covers: str) -> None:
    """Replace a function or method by what ``wrapper`` makes of it.

    Args:
        module: verl's module.
        path: name of the function, or ``Class.method``.
        wrapper: takes the function and returns its replacement.
        covers: what is not traced if the name does not exist, in words.
    """
    holder: Any = module
    *classes, name = path.split(".")
    for part in classes:
        holder = getattr(holder, part, None)
    original = getattr(holder, "__dict__", {}).get(name)
    if original is None or not (callable(original) or isinstance(original, classmethod)):
        missing(f"{module.__name__}.{path}", covers)
        return
    if isinstance(original, classmethod):
        setattr(holder, name, classmethod(wrapper(original.__func__)))
    else:
        setattr(holder, name, wrapper(original))


def missing(name: str, covers: str) -> None:
    """Say that this version of verl lacks ``name``, and what is not traced therefore."""
    _logger.warning("otel-rollout: verl %s has no %s, so %s; the rest is traced.", version(), name, covers)


def version() -> str:
    """verl's version, as far as it is known."""
    return str(getattr(sys.modules.get("verl"), "__version__", "of unknown version"))
