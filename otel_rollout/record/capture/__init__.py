"""Record trajectories, operations and scores inside user code: never raise, block or change a result."""
