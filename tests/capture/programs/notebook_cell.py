"""Define what a notebook's cell may define; a test runs the file as ``__main__``."""

from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(kind="TOOL", exclude=["key"])
def tool(text: str, key: str | None = None) -> str:
    return text


class Agent:
    @rollout_trace_op
    def run(self, text: str) -> str:
        return tool(text, key="secret")


class Careful(Agent):
    @rollout_trace_op
    def run(self, text: str) -> str:
        return super().run(text)


trajectory = rollout_trace_attr(step=1, name="trajectory")
