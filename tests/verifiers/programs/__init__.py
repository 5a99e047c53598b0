"""Programs that tests of verifiers run in other processes."""
