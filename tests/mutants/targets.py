"""The modules that are mutated, each with the tests that have to notice."""

from __future__ import annotations

from typing import Final

MAPPINGS: Final = "tests/exporting/test_mappings.py tests/exporting/test_mapping_details.py"
TARGETS: Final = {
    "otel_rollout/otlp/writer.py": "tests/otlp",
    "otel_rollout/otlp/reader.py": "tests/otlp",
    "otel_rollout/otlp/scan.py": "tests/otlp",
    "otel_rollout/otlp/json_span.py": "tests/otlp",
    "otel_rollout/forwarder/retry_policy.py": "tests/forwarder/test_retry_policy.py",
    "otel_rollout/forwarder/context_diff.py": "tests/forwarder/test_context_diff.py",
    "otel_rollout/forwarder/tail_rules.py": "tests/forwarder/test_tail_sampling.py",
    "otel_rollout/otlp/protobuf.py": "tests/otlp_exporter/test_protobuf.py",
    "exporters/otel_rollout_mlflow/feedback.py": MAPPINGS,
    "exporters/otel_rollout_mlflow/mapping.py": MAPPINGS,
    "exporters/otel_rollout_mlflow/tags.py": MAPPINGS,
    "exporters/otel_rollout_weave/attributes.py": MAPPINGS,
    "exporters/otel_rollout_weave/inputs_outputs.py": MAPPINGS,
    "exporters/otel_rollout_weave/feedback.py": MAPPINGS,
    "exporters/otel_rollout_weave/mapping.py": MAPPINGS,
}
"""Module → what pytest is given."""

EQUIVALENT: Final = ("Final = ", "import ")
"""Parts of lines whose mutants are not tried."""
