"""Check lines of standard input with Weave's own models; runs in ``.venv-weave``."""

import json
import sys

from weave.trace_server.trace_server_interface import (
    CompletedCallSchemaForInsert,
    FeedbackCreateReq,
    StartedCallSchemaForInsert,
)

MODELS = {
    "call": CompletedCallSchemaForInsert,
    "start": StartedCallSchemaForInsert,
    "feedback": FeedbackCreateReq,
}

count = 0
for line in sys.stdin.buffer:
    entry = json.loads(line)
    try:
        MODELS[entry["kind"]].model_validate(entry["body"])
    except ValueError as error:
        print(f"{error}\n{line[:2000]!r}", file=sys.stderr)
        sys.exit(1)
    count += 1
print(f"{count} valid")
