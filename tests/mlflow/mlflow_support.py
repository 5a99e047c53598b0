"""Helpers of the tests in this folder.

Not in conftest.py, whose module name every test folder shares.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest

from tests.mlflow_server import stored as stored

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what MLflow's own imports warn about is not ours to fix
    import mlflow  # before anything else imports it

not_in_3_14 = pytest.mark.xfail(
    mlflow.__version__.startswith("3.14."),
    reason="3.14 compares scores as text, adds up tokens of a repeated span, and fails to read huge integers",
    strict=False,
)
"""Mark of a test for which MLflow 3.14 does not suffice (docs/mlflow.md)."""

ADMIN, PASSWORD = "admin", "pa:ss, w@rd/%"
IN_A_FILE = PASSWORD.replace("%", "%%")
"""The password as it is written for Python's configparser, by which MLflow reads its file."""


@dataclass(frozen=True)
class SecuredServer:
    """A server with MLflow's own authentication behind TLS.

    Attributes:
        uri: its address, by the one name its certificate was issued for.
        ca: the file of the authority that signed it.
        other_ca: that of another.
    """

    uri: str
    ca: str
    other_ca: str
