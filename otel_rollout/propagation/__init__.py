"""Hold the name by which workers of other versions are instrumented."""
