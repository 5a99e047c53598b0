"""Python imports this at its start when this directory is on PYTHONPATH: see ``tests/faults/inside.py``."""

from tests.faults import inside

inside.arrange()
