"""Ask the model of the first argument, then divide by zero; print what the program caught."""

import sys

from openai import OpenAI

import otel_rollout
from otel_rollout import rollout_trace_attr

MESSAGES = [{"role": "user", "content": "What do 3 apples and 4 pears cost?"}]


def main(model: str) -> None:
    otel_rollout.instrument()
    try:
        with (
            OpenAI(max_retries=0) as client,
            rollout_trace_attr(step=1, sample_index=0, rollout_n=0),
        ):
            client.chat.completions.create(model=model, messages=MESSAGES)
            print(1 / 0)
    except Exception as error:
        print(type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1])
