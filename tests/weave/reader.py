"""The unmodified weave client as a process that answers a question per line.

Runs in ``.venv-weave``. A question names a project, ``entity/project``, and either the arguments of
``WeaveClient.get_calls``, or ``"children_of": call id``, ``"feedback": true``, ``"threads": true``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import weave

clients: dict[str, Any] = {}


def answer(question: dict[str, Any]) -> list[dict[str, Any]]:
    project = question.pop("project")
    if project not in clients:
        clients[project] = weave.init(project)
    client = clients[project]
    if question.pop("feedback", False):
        found = client.get_feedback(query=question.get("query"))
        return [json.loads(feedback.model_dump_json()) for feedback in found]
    if question.pop("threads", False):
        from weave.trace_server.trace_server_interface import ThreadsQueryReq

        found = client.server.threads_query_stream(ThreadsQueryReq(project_id=project))
        return [json.loads(thread.model_dump_json()) for thread in found]
    if children_of := question.pop("children_of", None):
        return [described(child) for child in client.get_call(children_of).children()]
    return [described(call) for call in client.get_calls(**question)]


def described(call: Any) -> dict[str, Any]:
    return {
        "id": call.id,
        "trace_id": call.trace_id,
        "parent_id": call.parent_id,
        "op_name": call.op_name,
        "display_name": call.display_name,
        "thread_id": call.thread_id,
        "turn_id": call.turn_id,
        "started_at": call.started_at.isoformat(),
        "ended_at": call.ended_at.isoformat() if call.ended_at else None,
        "attributes": call.attributes,
        "inputs": call.inputs,
        "output": call.output,
        "exception": call.exception,
        "summary": call.summary,
        "wb_run_id": call.wb_run_id,
        "wb_run_step": call.wb_run_step,
    }


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # the client greets
    for line in sys.stdin:
        try:
            reply = {"answer": answer(json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
