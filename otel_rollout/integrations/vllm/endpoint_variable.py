"""Keep the run's target from being taken from the variable in which vLLM writes its own endpoint.

An engine that traces sets ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` in its process's environment, for its
workers. The exporter ``otlp`` reads this variable, and so do the checks whether a process names another
target than its run.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Final

from otel_rollout.base.receiver_variables import NAMES_VARIABLE
from otel_rollout.integrations.kit.seams import before
from otel_rollout.integrations.vllm.patched_modules import seams
from otel_rollout.integrations.vllm.trace_headers import ENGINES
from otel_rollout.record.runs import membership

VARIABLE: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_LOSS: Final = f"processes that it starts may take {VARIABLE}, which it sets, for the run's target"


def install(module: ModuleType) -> None:
    """Wrap an engine's constructor."""
    hiding = before(_hide, "hiding a variable of vLLM's")
    seams.wrap(module, f"{ENGINES[module.__name__]}.__init__", hiding, _LOSS)


def _hide(_: Any, vllm_config: Any = None, *__: Any, **___: Any) -> None:
    """Decide the run, and list the variable with those that lead to a receiver, unless the user has set
    it."""
    config = getattr(vllm_config, "observability_config", None)
    if getattr(config, "otlp_traces_endpoint", None) is None:
        return
    membership.settle()
    names = [name for name in os.environ.get(NAMES_VARIABLE, "").split(",") if name]
    if not os.environ.get(VARIABLE, "").strip():
        os.environ[NAMES_VARIABLE] = ",".join([*names, VARIABLE])
