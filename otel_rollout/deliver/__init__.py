"""Forward segments to exporters, in a process of its own."""
