"""Abandon a streamed answer in one trajectory, as the first argument says; ask whole in the next."""

import contextlib
import gc
import sys

from openai import OpenAI

import otel_rollout
from otel_rollout import rollout_trace_attr

MESSAGES = [{"role": "user", "content": "What do 3 apples and 4 pears cost?"}]


class Abandoned(Exception):
    """The agent gives up."""


def abandon(client: OpenAI, ending: str) -> None:
    stream = client.chat.completions.create(model="shop", messages=MESSAGES, stream=True)
    for _ in stream:
        if ending == "exception":
            raise Abandoned
        break
    if ending == "close":
        stream.close()
    if ending == "garbage":
        del stream
        gc.collect()


def main(ending: str) -> None:
    otel_rollout.instrument()
    with OpenAI() as client:
        with contextlib.suppress(Abandoned), rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
            abandon(client, ending)
        with rollout_trace_attr(step=1, sample_index=1, rollout_n=0):
            client.chat.completions.create(model="shop", messages=MESSAGES)


if __name__ == "__main__":
    main(sys.argv[1])
