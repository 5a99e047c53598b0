"""Ask twice in each of two trajectories through LiteLLM, with LiteLLM's own OpenTelemetry callback."""

import litellm

import otel_rollout
from otel_rollout import rollout_trace_attr

MESSAGES = [{"role": "user", "content": "What do 3 apples and 4 pears cost?"}]


def main() -> None:
    litellm.callbacks = ["otel"]
    otel_rollout.instrument()
    for index in range(2):
        with rollout_trace_attr(step=1, sample_index=index, rollout_n=0):
            for _ in range(2):
                litellm.completion(model="openai/shop", messages=MESSAGES)


if __name__ == "__main__":
    main()
