"""Who records in this process, and verl's trace configuration there."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any, Final

from otel_rollout import runtime
from otel_rollout._state import process

_MODULE: Final = "verl.utils.rollout_trace"
_SETTLED: Final = "_otel_rollout_recorder"


class Recorder(Enum):
    """Who records what is traced."""

    OTEL_ROLLOUT = "otel-rollout"
    VERL = "verl's own code"
    NOBODY = "nobody"


def config() -> Any:
    """verl's trace configuration in this process; None where its module has not been imported."""
    module = sys.modules.get(_MODULE)
    return None if module is None else module.RolloutTraceConfig.get_instance()


def settle(trace_config: Any, recorder: Recorder) -> None:
    """Remember with verl's configuration, for as long as that lives, who records."""
    setattr(trace_config, _SETTLED, recorder)


def recorder() -> Recorder:
    """Who records now. Before verl's configuration is read that is us, if the environment says so."""
    settled = getattr(config(), _SETTLED, Recorder.OTEL_ROLLOUT)
    if settled is Recorder.OTEL_ROLLOUT and process.off:
        return Recorder.NOBODY
    return settled if isinstance(settled, Recorder) else Recorder.OTEL_ROLLOUT


def is_ours() -> bool:
    """Whether we record, and can. Never raises."""
    return recorder() is Recorder.OTEL_ROLLOUT and runtime.current() is not None
