"""An argument wins over its variables, and secrets are masked."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from otel_rollout.exporting.arguments import (
    Given,
    given,
    masked,
    positive_bytes,
    seconds,
    without_credentials,
)


def test_argument_wins_over_the_variables_in_their_order(monkeypatch):
    """Empty and blank values count as not given.

    The source names the argument or variable.
    """
    assert given("url", None, "SPECIAL_URL", "URL") == Given(None, "URL")
    monkeypatch.setenv("URL", "general")
    monkeypatch.setenv("SPECIAL_URL", "  ")
    assert given("url", "", "SPECIAL_URL", "URL") == Given("general", "URL")
    monkeypatch.setenv("SPECIAL_URL", "special")
    assert given("url", None, "SPECIAL_URL", "URL") == Given("special", "SPECIAL_URL")
    assert given("url", "argument", "SPECIAL_URL", "URL") == Given("argument", "url=")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_seconds_that_are_not_positive_are_refused(monkeypatch, text):
    """The message names the variable and its value."""
    monkeypatch.setenv("WAIT", text)
    with pytest.raises(ValueError, match=f"WAIT is '{text}'; expected a positive number of seconds"):
        seconds("wait", None, "WAIT", default=1)


def test_seconds_come_from_argument_variable_or_default(monkeypatch):
    """The argument wins over the variable, and the variable over the default."""
    assert seconds("wait", None, "WAIT", default=1) == 1
    monkeypatch.setenv("WAIT", "2.5")
    assert seconds("wait", None, "WAIT", default=1) == 2.5
    assert seconds("wait", 3, "WAIT", default=1) == 3


@pytest.mark.parametrize("value", [0, -1])
def test_bytes_that_are_not_positive_are_refused(value):
    """The message names the argument."""
    with pytest.raises(ValueError, match=f"max_request_bytes= is {value}"):
        positive_bytes("max_request_bytes", value)


def test_secret_that_contains_another_is_masked_whole():
    """No part of the longer secret remains in the text."""
    assert masked("key abc-def abc", ["abc", "abc-def", "", None]) == "key *** ***"


def test_address_without_credentials_has_no_query_either():
    """User name, password, query, fragment and trailing slash are removed."""
    parts = urlsplit("https://alice:p@ss@host:1/base/?key=1#x")
    assert without_credentials(parts) == "https://host:1/base"
