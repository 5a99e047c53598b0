"""Import verl, and print what that has imported and patched, as JSON."""

import json
import sys

before = set(sys.modules)
import verl  # noqa: E402, F401

imported = {name for name in set(sys.modules) - before if name.startswith("otel_rollout.integrations")}
import ray  # noqa: E402
from verl.utils import rollout_trace  # noqa: E402

found = {
    "integrations": sorted(imported),
    "ray is patched": ray.init.__globals__["__name__"].startswith("otel_rollout."),
    "decorator": rollout_trace.rollout_trace_op.__module__,
}
print(json.dumps(found))
