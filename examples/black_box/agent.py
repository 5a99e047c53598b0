"""Answer a question with a tool, as an agent that knows nothing of tracing: a stand-in for any agent.

The environment hands it a base URL and a key, ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, and nothing else.
It uses the standard library alone and prints each step::

    python examples/black_box/agent.py MODEL "What is 3 + 4?"
"""

from __future__ import annotations

import json
import operator
import os
import sys
import urllib.request
from typing import Any

Message = dict[str, Any]
SYSTEM = "Solve the problem with the calculator. Answer with the number alone."
MAX_TURNS = 4
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
EXPRESSION = "Two numbers with +, -, * or / between them, and spaces, for example 3 + 4."
PARAMETERS = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": EXPRESSION}},
    "required": ["expression"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculate the value of an expression.",
        "parameters": PARAMETERS,
    },
}


def calculator(expression: str) -> str:
    """Calculate the value of an expression; an error becomes text for the model."""
    try:
        first, sign, second = expression.split()
        return f"{OPERATIONS[sign](int(first), int(second)):.3g}"
    except (ValueError, KeyError, ZeroDivisionError) as error:
        return json.dumps({"error": str(error)})


def ask(model: str, messages: list[Message]) -> Message:
    """Return the model's next message."""
    url = os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions"
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    asked = {"model": model, "messages": messages, "tools": [TOOL], "temperature": 0, "max_tokens": 64}
    request = urllib.request.Request(url, json.dumps(asked).encode(), headers)  # noqa: S310 - from the environment
    with urllib.request.urlopen(request, timeout=300) as response:  # noqa: S310
        answer: Message = json.load(response)["choices"][0]["message"]
    return answer


def main(model: str, question: str) -> None:
    """Talk to the model until it calls no tool."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        reply = ask(model, messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            print("answer", reply["content"], flush=True)
            return
        for call in reply["tool_calls"]:
            result = calculator(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            print("tool", result, flush=True)
    sys.exit("the model called tools until the end")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
