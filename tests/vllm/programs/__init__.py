"""Programs that the tests with vLLM run in other processes."""
