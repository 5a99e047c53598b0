"""Change this process at its start; see ``tests/faults/inside.py``.

Python imports this module at its start if its directory is on PYTHONPATH.
"""

from tests.faults import inside

inside.arrange()
