"""Real vLLM on a CPU, with a tiny random model."""
