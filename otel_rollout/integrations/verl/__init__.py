"""Trace verl's rollouts without an edit to verl or to a launch script.

verl imports this package in every process: it is an entry point of group ``verl.plugins`` (verl ≥ 0.9), and
for older versions the user names it in ``VERL_USE_EXTERNAL_MODULES``. Importing this package imports no
module of verl's. It also traces the requests in verl's engine, if that is vLLM.

verl reads the flag ``actor_rollout_ref.rollout.trace.backend`` in the driver before Ray starts, and in the
worker. Both places are patched even if tracing is not configured, since the flag may ask for tracing.
"""

from __future__ import annotations

from typing import Final

import otel_rollout.integrations.vllm  # noqa: F401 - waits for vLLM
from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("verl", "otel_rollout.integrations.verl")

UNCONFIGURED: Final = {
    "verl.trainer.constants_ppo": (".driver_setup",),
    "verl.utils.rollout_trace": (".trace_config",),
}
"""Patches of a process whose environment does not configure tracing."""
CONFIGURED: Final = {
    "verl.trainer.constants_ppo": (".driver_setup",),
    "verl.utils.rollout_trace": (".rollout_trace",),
    "verl.utils.tracking": (".driver_setup",),
    "verl.experimental.agent_loop.agent_loop": (".trajectory", ".sample_limit"),
    "verl.trainer.ppo.v1.agent_loop_tq": (".sample_limit",),
    "verl.experimental.agent_loop.tool_agent_loop": (".tools", "..kit.logged_errors"),
    "verl.experimental.agent_loop.tool_parser": ("..kit.logged_errors",),
    "verl.workers.rollout.llm_server": (".traced_functions",),
    "verl.trainer.ppo.ray_trainer": (".legacy_training",),
    "verl.trainer.ppo.rollout_corr_helper": (".known_trajectories",),
    "verl.trainer.ppo.v1.utils": (".v1_training",),
    "verl.trainer.ppo.v1.trainer_base": (".v1_training",),
    "verl.trainer.ppo.v1.replay_buffer": (".v1_training",),
    "verl.experimental.reward_loop.reward_loop": (".v1_training",),
}
"""Patches of a process whose environment configures tracing."""

seams.install(CONFIGURED, UNCONFIGURED)
