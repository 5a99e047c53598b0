"""LiteLLM's own callback, which sets a tracer provider at the first call."""

import subprocess
import sys
from pathlib import Path

from tests.spool_reader import read_directory

PROGRAM = Path(__file__).parent / "programs" / "litellm_callback.py"


def test_own_callback_makes_a_span_per_call_in_the_trajectory(openai_server, tmp_path, monkeypatch):
    """With LiteLLM's variable for it, from the first call on, though the root started before the provider."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "spool")
    monkeypatch.setenv("OTEL_EXPORTER", "in_memory")
    monkeypatch.setenv("USE_OTEL_LITELLM_REQUEST_SPAN", "true")
    subprocess.run([sys.executable, str(PROGRAM)], check=True, timeout=120)
    calls = [span for span in read_directory(tmp_path / "spool") if span.name == "litellm_request"]
    # LiteLLM ends a call's span in a thread of its own, so the order of two calls is not that of their spans.
    assert sorted(span.attributes["rollout.sample_index"] for span in calls) == [0, 0, 1, 1]
    assert all(span.attributes["gen_ai.usage.input_tokens"] for span in calls)
