"""Record with a logging handler that is traced; print whether it was recorded."""

import logging

import otel_rollout


@otel_rollout.rollout_trace_op
def post(message: str) -> int:
    return len(message)


class Handler(logging.Handler):
    """Post each message, except what is logged meanwhile."""

    is_busy = False

    def emit(self, record: logging.LogRecord) -> None:
        if not Handler.is_busy:
            Handler.is_busy = True
            post(record.getMessage())
            Handler.is_busy = False


if __name__ == "__main__":
    logging.getLogger().addHandler(Handler())
    with otel_rollout.rollout_trace_attr(step=1):
        pass
    print(otel_rollout.shutdown(0).recorded > 0)
