"""Trace verl's rollouts without an edit to verl or to a launch script.

verl imports this package in every process: it is an entry point of group ``verl.plugins`` (verl ≥ 0.9), and
for older versions the user names it in ``VERL_USE_EXTERNAL_MODULES``. Importing this package imports no
module of verl's. It also traces the requests in verl's engine, if that is vLLM.
"""

import otel_rollout.integrations.vllm  # noqa: F401 - waits for vLLM
from otel_rollout.integrations.verl.patched_modules import CONFIGURED, UNCONFIGURED, seams

seams.install(CONFIGURED, UNCONFIGURED)
