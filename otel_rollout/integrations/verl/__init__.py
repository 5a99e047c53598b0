"""Trace verl's rollouts without an edit to verl or to a launch script.

verl imports this package in every process: it is an entry point of group ``verl.plugins`` (verl ≥ 0.9), and
for older versions the user names it in ``VERL_USE_EXTERNAL_MODULES``. Importing this package imports no
module of verl's.
"""

from otel_rollout.integrations.verl.patched_modules import CONFIGURED, UNCONFIGURED, seams

seams.install(CONFIGURED, UNCONFIGURED)
