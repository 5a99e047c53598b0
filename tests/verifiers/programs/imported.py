"""Import verifiers, and print which modules of this package were imported with it."""

from __future__ import annotations

import importlib
import json
import sys

importlib.import_module("verifiers.v1.env")
print(json.dumps(sorted(name for name in sys.modules if name.startswith("otel_rollout"))))
