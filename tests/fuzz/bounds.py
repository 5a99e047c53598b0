"""Set the number of examples: ten times as many with HYPOTHESIS_PROFILE=soak.

They fit into the ten minutes of a round of the soak on two busy cores.
"""

import os

from hypothesis import HealthCheck, settings

_FACTOR = 10 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1
_UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(number: int) -> settings:
    """Return settings that try a property ``number`` times."""
    return settings(max_examples=number * _FACTOR, deadline=None, suppress_health_check=_UNCHECKED)
