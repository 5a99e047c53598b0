"""Resolve the exporter's settings.

Arguments win over the environment, and the environment wins over defaults. The constructor checks all values.
The environment variables are those of MLflow's client.
"""

from __future__ import annotations

import configparser
import os
import re
import ssl
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from otel_rollout.exporting.arguments import basic_auth, given, masked, seconds, without_credentials

DEFAULT_EXPERIMENT_ID: Final = "0"
"""Id of MLflow's "Default" experiment, for spans without a project if no setting names an experiment."""

MINIMUM_VERSION: Final = "3.14"
"""The oldest MLflow that was tested. MLflow accepts trace tags over OTLP from 3.13 on."""

DEFAULT_TIMEOUT: Final = 30.0
_SERVER_SCHEMES: Final = frozenset({"http", "https"})
_DATABASE_SCHEMES: Final = frozenset({"sqlite", "postgresql", "mysql", "mssql"})
_MANAGED_SERVICES: Final = {
    "databricks": "Databricks",
    "databricks-uc": "Databricks",
    "uc": "Databricks",
    "arn": "an MLflow server of Amazon SageMaker",
    "azureml": "Azure Machine Learning",
}
"""URI scheme → service that needs a plug-in of MLflow's client, which this exporter does not have."""
CREDENTIALS_FILE: Final = "~/.mlflow/credentials"
"""File with user name and password that MLflow's client reads if no variable has them."""
_HOST_AND_PORT: Final = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:]+\]):\d+(?:/.*)?", re.ASCII)
_TRUE: Final = frozenset({"true", "1"})
_FALSE: Final = frozenset({"false", "0"})


@dataclass(frozen=True)
class MlflowSettings:
    """The constructor's arguments and the environment, resolved.

    Attributes:
        uri: tracking URI. A server's URI has no user name, password or trailing slash.
        is_server: whether ``uri`` is an MLflow server rather than a database.
        experiment_name: experiment of every span, whatever project the span names; created if missing.
        experiment_id: id of that experiment, which must exist. Name, id or both are None.
        run_id: MLflow run that every trace is linked to, or None.
        username: for basic authentication.
        password: for basic authentication.
        token: for bearer authentication, used only where no user name is given.
        verify_tls: whether to check the server's certificate, or the CA bundle file to check it with.
        client_cert: PEM file with the client's certificate, or None.
        timeout: maximum seconds without a byte from the server in one request.
    """

    uri: str
    is_server: bool
    experiment_name: str | None
    experiment_id: str | None
    run_id: str | None
    username: str | None
    password: str | None = field(repr=False)
    token: str | None = field(repr=False)
    verify_tls: bool | str
    client_cert: str | None
    timeout: float

    @property
    def shown_uri(self) -> str:
        """The tracking URI for messages, the password masked."""
        return self.redact(self.uri)

    @property
    def plain_uri(self) -> str:
        """The tracking URI without credentials; SQLite's path is absolute."""
        scheme, _, path = self.uri.partition("?")[0].partition(":///")
        if scheme.startswith("sqlite"):
            return f"{scheme}:///{path if path.startswith('file:') else os.path.abspath(path)}"
        return without_credentials(urlsplit(self.uri))

    def redact(self, text: str) -> str:
        """Mask every secret in a message, both plain and as encoded in requests."""
        sent = basic_auth(self.username or "", self.password or "")
        return masked(text, [sent, self.password, self.token, urlsplit(self.uri).password])


def resolve(
    *,
    tracking_uri: str | None = None,
    experiment_name: str | None = None,
    experiment_id: str | None = None,
    run_id: str | None = None,
    username: str | None = None,
    password: str | None = None,
    token: str | None = None,
    insecure_tls: bool | None = None,
    server_cert_path: str | None = None,
    timeout: float | None = None,
) -> MlflowSettings:
    """Combine arguments and environment, without touching the network.

    Raises:
        ValueError: a value is missing, malformed or not supported; the message names the argument or variable
            and the remedy.
    """
    uri, source = given("tracking_uri", tracking_uri, "MLFLOW_TRACKING_URI")
    if uri is None:
        raise ValueError(
            "No MLflow tracking URI: set MLFLOW_TRACKING_URI (or pass tracking_uri=) to the address of an "
            "MLflow server such as http://127.0.0.1:5000, or to a database such as sqlite:////data/mlflow.db."
        )
    parts = _checked_uri(uri, source)
    is_server = parts.scheme in _SERVER_SCHEMES
    if is_server:
        _check_sign_in()

    experiment_name, experiment_id = _experiment(experiment_name, experiment_id)
    return MlflowSettings(
        uri=without_credentials(parts) if is_server else uri,
        is_server=is_server,
        experiment_name=experiment_name,
        experiment_id=experiment_id,
        run_id=given("run_id", run_id, "MLFLOW_RUN_ID")[0],
        **_credentials(username, password, token, parts) if is_server else _NO_CREDENTIALS,
        verify_tls=_verify_tls(insecure_tls, server_cert_path),
        client_cert=_existing_file(
            os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"), "MLFLOW_TRACKING_CLIENT_CERT_PATH"
        ),
        timeout=seconds("timeout", timeout, "MLFLOW_HTTP_REQUEST_TIMEOUT", default=DEFAULT_TIMEOUT),
    )


def _experiment(name: str | None, experiment_id: str | None) -> tuple[str | None, str | None]:
    """Return the name and the id of all spans' experiment; at most one of the two is set."""
    if name and experiment_id:
        raise ValueError("Pass experiment_name= or experiment_id=, not both.")
    if not name:
        experiment_id, id_source = given("experiment_id", experiment_id, "MLFLOW_EXPERIMENT_ID")
        if experiment_id is not None and not experiment_id.isdecimal():
            raise ValueError(
                f"{id_source} is {experiment_id!r}, but an MLflow experiment id is a number; "
                "for a name use experiment_name= or MLFLOW_EXPERIMENT_NAME."
            )
    if not experiment_id:
        name, _ = given("experiment_name", name, "MLFLOW_EXPERIMENT_NAME")
    return name, experiment_id


_NO_CREDENTIALS: Final[dict[str, str | None]] = {"username": None, "password": None, "token": None}


def _credentials(
    username: str | None, password: str | None, token: str | None, parts: SplitResult
) -> dict[str, str | None]:
    """Find credentials in arguments, variables, URI or file, in this order."""
    username, name_source = given("username", username, "MLFLOW_TRACKING_USERNAME")
    password, _ = given("password", password, "MLFLOW_TRACKING_PASSWORD")
    token, token_source = given("token", token, "MLFLOW_TRACKING_TOKEN")
    from_file = _credentials_file()
    username = username or unquote(parts.username or "") or from_file.get("mlflow_tracking_username")
    password = password or unquote(parts.password or "") or from_file.get("mlflow_tracking_password")
    token = token and token.strip()
    if token and not (token.isascii() and token.isprintable()):
        raise ValueError(
            f"{token_source} holds characters that no HTTP header can; check where it comes from."
        )
    if username and not password and not token:
        raise ValueError(
            f"{name_source} is {username!r}, but there is no password for it: set MLFLOW_TRACKING_PASSWORD."
        )
    return {"username": username, "password": password, "token": token}


def _credentials_file() -> dict[str, str]:
    path = Path(CREDENTIALS_FILE).expanduser()
    file = configparser.ConfigParser()
    try:
        file.read(path)
        return dict(file["mlflow"]) if "mlflow" in file else {}
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        # The message omits the error's text, which may quote the line with the password.
        raise ValueError(f"{path} cannot be read as MLflow's credentials ({type(error).__name__}).") from None


def _check_sign_in() -> None:
    """Refuse ways to sign in that only MLflow's own client supports."""
    plugin = os.environ.get("MLFLOW_TRACKING_AUTH")
    if plugin:
        raise ValueError(
            f"MLFLOW_TRACKING_AUTH names the plug-in {plugin!r} of MLflow's client, which this exporter does "
            "not load; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
        )
    if _flag("MLFLOW_TRACKING_AWS_SIGV4"):
        raise ValueError(
            "MLFLOW_TRACKING_AWS_SIGV4 asks for requests signed for AWS, which this exporter does not do; "
            "use an MLflow server that takes a user name and password, or a token."
        )


def _checked_uri(uri: str, source: str) -> SplitResult:
    try:
        parts = urlsplit(uri)
        scheme = parts.scheme
        host = parts.hostname
        _ = parts.port  # raises ValueError unless a number
    except ValueError:  # not chained: its text may quote a part of a password
        raise ValueError(
            f"{source} is {_shown(uri)!r}, which is not a valid URI; expected http://HOST:PORT. In a user "
            "name or password, write / as %2F, @ as %40 and : as %3A."
        ) from None

    if scheme in _SERVER_SCHEMES:
        if not host:
            raise ValueError(f"{source} is {_shown(uri)!r}, which names no host; expected http://HOST:PORT.")
        return parts
    service = _MANAGED_SERVICES.get(scheme) or _MANAGED_SERVICES.get(uri)
    if service:
        raise ValueError(
            f"{source} is {_shown(uri)!r}, {service}, which this exporter does not support; use an MLflow "
            "server (http://HOST:PORT) or a database (sqlite:////data/mlflow.db)."
        )
    if _HOST_AND_PORT.fullmatch(uri):
        raise ValueError(f"{source} is {_shown(uri)!r}, which lacks http:// or https:// at its beginning.")
    if scheme in ("", "file"):
        raise ValueError(
            f"{source} is {_shown(uri)!r}, an MLflow file store, which cannot hold spans; use a database in "
            "that directory, such as sqlite:////data/mlflow.db, or an MLflow server (http://HOST:PORT)."
        )
    dialect = scheme.partition("+")[0]
    if dialect not in _DATABASE_SCHEMES:
        hint = " SQLAlchemy spells it postgresql://." if dialect == "postgres" else ""
        raise ValueError(
            f"{source} is {_shown(uri)!r}, whose scheme {scheme!r} is not supported.{hint} Use http://, "
            "https://, " + ", ".join(f"{name}://" for name in sorted(_DATABASE_SCHEMES)) + "."
        )
    if dialect == "sqlite" and parts.path in ("", "/", "/:memory:"):
        raise ValueError(
            f"{source} is {uri!r}, an in-memory database, which nobody else could read; name a file, such as "
            "sqlite:////data/mlflow.db."
        )
    _check_local_mlflow(source, scheme)
    return parts


def _check_local_mlflow(source: str, scheme: str) -> None:
    """Check that MLflow is installed and recent enough to write to a database."""
    install = "pip install 'otel-rollout[mlflow-local]'"
    if find_spec("mlflow") is None or find_spec("sqlalchemy") is None:
        raise ValueError(
            f"{source} is a database ({scheme}://), which needs the full mlflow package here: {install}. "
            "An MLflow server (http://HOST:PORT) needs none."
        )
    try:
        installed = version("mlflow")
    except PackageNotFoundError:  # the distribution mlflow-skinny has this code too
        installed = version("mlflow-skinny")
    if parse_version(installed) < parse_version(MINIMUM_VERSION):
        raise ValueError(
            f"{source} is a database ({scheme}://), which needs mlflow >= {MINIMUM_VERSION} here, "
            f"but {installed} is installed: {install}"
        )


def parse_version(text: str) -> tuple[int, int]:
    """Parse major and minor number of a version such as ``3.17.2``.

    Raises:
        ValueError: the text is no version.
    """
    match = re.match(r"\s*(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no version")
    return int(match[1]), int(match[2])


def _shown(uri: str) -> str:
    """Return a URI for messages, without the text between the scheme and the last @."""
    before, at, after = uri.rpartition("@")
    return f"{before.partition('//')[0]}//***@{after}" if at else uri


def _verify_tls(insecure: bool | None, cert_path: str | None) -> bool | str:
    if insecure is None:
        insecure = _flag("MLFLOW_TRACKING_INSECURE_TLS")
    path, source = given("server_cert_path", cert_path, "MLFLOW_TRACKING_SERVER_CERT_PATH")
    if insecure and path:
        raise ValueError(
            f"MLFLOW_TRACKING_INSECURE_TLS (or insecure_tls=) contradicts {source}: "
            "either skip the check of the certificate or name the bundle to check it with."
        )
    bundle = _existing_file(path, source)
    if bundle is None:
        return not insecure
    if os.path.isfile(bundle):
        try:
            ssl.create_default_context().load_verify_locations(bundle)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error.strerror
            raise ValueError(
                f"{source} names {bundle!r}, which holds no CA in PEM format ({reason})."
            ) from None
    return bundle


def _flag(variable: str) -> bool:
    text = os.environ.get(variable, "").lower()
    if text in _TRUE:
        return True
    if text in _FALSE or not text:
        return False
    raise ValueError(f"{variable} is {text!r}; expected true or false.")


def _existing_file(path: str | None, source: str) -> str | None:
    if path and not os.path.exists(path):
        raise ValueError(f"{source} names {path!r}, which does not exist.")
    return path or None
