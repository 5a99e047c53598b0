"""Record while imported, with a redaction that imports this module.

Prints whether it was recorded.
"""

import otel_rollout


def redact(line: bytes) -> bytes:
    import tests.runs.programs.redaction_of_unfinished_import  # noqa: F401 - the import may wait for itself

    return line


with otel_rollout.rollout_trace_attr(step=1):
    pass
print(otel_rollout.shutdown(0).recorded > 0)
