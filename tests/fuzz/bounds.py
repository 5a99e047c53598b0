"""Set the number of examples of expensive properties: the profile multiplies it, as that of all others."""

from hypothesis import HealthCheck, settings

_USUAL = 25
"""Examples in the profiles of a test run, see ``tests/conftest.py``."""
_UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(number: int) -> settings:
    """Return settings that try a property ``number`` times, more often in a nightly run."""
    assert settings.default is not None
    most = number * settings.default.max_examples // _USUAL
    return settings(max_examples=most, deadline=None, suppress_health_check=_UNCHECKED)
