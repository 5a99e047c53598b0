"""Record with a redaction that is traced; print whether it was recorded."""

import otel_rollout


@otel_rollout.rollout_trace_op
def clean(line: bytes) -> bytes:
    return line


def redact(line: bytes) -> bytes:
    return clean(line)


if __name__ == "__main__":
    with otel_rollout.rollout_trace_attr(step=1):
        pass
    print(otel_rollout.shutdown(0).recorded > 0)
