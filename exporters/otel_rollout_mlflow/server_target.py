"""Write to an MLflow server over HTTP: OTLP for spans, its REST API for all else."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import requests
from requests.auth import AuthBase, HTTPBasicAuth

from otel_rollout.exporting.api import FailureKind, MetricPoint, UndeliveredError
from otel_rollout.exporting.http import BearerAuth, HttpServer, HttpSession, described
from otel_rollout_mlflow.mapping import TRACE_NAME_TAG
from otel_rollout_mlflow.scores import MARK, Change, MlflowFeedback
from otel_rollout_mlflow.settings import MINIMUM_VERSION, MlflowSettings, parse_version
from otel_rollout_mlflow.target import (
    MAX_FOUND,
    NEWEST_FIRST,
    NOT_THERE,
    OLDEST_FIRST,
    Experiment,
    unreadable,
)

Found = TypeVar("Found")
EXPERIMENT_HEADER: Final = "x-mlflow-experiment-id"

_FEEDBACK_THREADS: Final = 2
"""Parallel requests for scores. Two speed up a distant server; eight would slow down a local one."""
_GZIP_LEVEL: Final = 1
"""Compression level with the least CPU time, because the forwarder shares its cores with training."""
_REJECTED_CODES: Final = frozenset({"INVALID_STATE", "DATA_LOSS"})
"""MLflow's error codes, with status 500, that blame the content of the batch."""


class ServerTarget:
    """An MLflow tracking server.

    Each method may raise ``UndeliveredError``, and may be called again afterwards.
    """

    def __init__(self, settings: MlflowSettings) -> None:
        self._settings = settings
        self._session = _session(settings)

    def connect(self) -> None:
        """Check that MLflow answers and is recent enough. Called first.

        Takes one GET of ``/version``.
        """
        response = self._send("GET", "/version")
        self._session.check(response, "reading its version")
        with self._reading(response):
            found = parse_version(response.text)
        if found < parse_version(MINIMUM_VERSION):
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"The MLflow server at {self._settings.shown_uri} is version {response.text.strip()}, but "
                f"traces with tags and runs need {MINIMUM_VERSION} or newer: upgrade it.",
            )

    def experiment_named(self, name: str) -> Experiment | None:
        """Return the experiment with a name, or None."""
        return self._experiment("get-by-name", {"experiment_name": name})

    def experiment_with_id(self, experiment_id: str) -> Experiment | None:
        """Return the experiment with an id; None if there is none."""
        return self._experiment("get", {"experiment_id": experiment_id})

    def create_experiment(self, name: str) -> None:
        """Create an experiment, unless one with that name exists."""
        response = self._send("POST", "/api/2.0/mlflow/experiments/create", json={"name": name})
        code = _error_code(response)
        if code == "INVALID_PARAMETER_VALUE":
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"MLflow answered {described(response)} when creating the experiment {name!r}: choose "
                "another name for the project, or set MLFLOW_EXPERIMENT_NAME.",
            )
        if code != "RESOURCE_ALREADY_EXISTS":
            self._session.check(response, f"creating the experiment {name!r}")

    def has_run(self, run_id: str) -> bool:
        """Return whether a run exists."""
        response = self._send("GET", "/api/2.0/mlflow/runs/get", params={"run_id": run_id})
        if _error_code(response) in (NOT_THERE, "INVALID_PARAMETER_VALUE"):
            return False
        self._session.check(response, f"looking up the run {run_id}")
        return True

    def link_traces(self, trace_ids: Sequence[str], run_id: str) -> None:
        """Link at most ``MAX_LINKS`` traces to a run; linked traces stay linked.

        A run that does not exist is REFUSED.

        Takes one POST.

        MLflow would also take the run in a header of the POST that writes spans, but there it reports no
        error if it links nothing.
        """
        request = {"trace_ids": list(trace_ids), "run_id": run_id}
        response = self._send("POST", "/api/2.0/mlflow/traces/link-to-run", json=request)
        self._check_run(response, f"linking traces to the run {run_id}")

    def metric_steps(self, run_id: str, name: str) -> set[int]:
        """Return the steps at which a run has a value of a metric.

        There are none, or an error is raised, if the run does not exist.

        Takes one GET.
        """
        wanted = {"run_id": run_id, "metric_key": name}
        response = self._send("GET", "/api/2.0/mlflow/metrics/get-history", params=wanted)
        self._check_run(response, f"reading the metric {name} of the run {run_id}")
        with self._reading(response):
            return {int(point.get("step", 0)) for point in response.json().get("metrics", [])}

    def log_metrics(self, run_id: str, points: Sequence[MetricPoint]) -> None:
        """Write values of metrics into a run, all or none; equal values with equal times once.

        A run that does not exist is REFUSED.

        Takes one POST.
        """
        values = [
            {"key": point.name, "value": point.value, "step": point.step, "timestamp": point.time_ms}
            for point in points
        ]
        request = {"run_id": run_id, "metrics": values}
        response = self._send("POST", "/api/2.0/mlflow/runs/log-batch", json=request)
        self._check_run(response, f"writing metrics of the run {run_id}")

    def traces_of(
        self, filter_string: str, experiment_ids: Sequence[str], *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield all traces of experiments that match, as MLflow's API describes them.

        Args:
            filter_string: condition in MLflow's search syntax.
            experiment_ids: experiments to search.
            newest_first: whether newer traces come first.
        """
        search = {
            "locations": [
                {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": id_}}
                for id_ in experiment_ids
            ],
            "filter": filter_string,
            "order_by": [NEWEST_FIRST if newest_first else OLDEST_FIRST],
        }
        for page in self._pages("/api/3.0/mlflow/traces/search", search, "searching traces"):
            yield from page.get("traces", [])

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace with its spans in the form of MLflow's API; None if missing.

        A trace that MLflow cannot return is REJECTED.

        Takes one GET.
        """
        wanted = {"trace_id": trace_id, "allow_partial": "true"}
        response = self._send("GET", "/api/3.0/mlflow/traces/get", params=wanted)
        if response.status_code == requests.codes.internal_server_error:
            raise unreadable(trace_id, described(response))
        return self._found(response, f"reading the trace {trace_id}", lambda answer: answer["trace"])

    def experiment_ids(self) -> list[str]:
        """Return the ids of all experiments that the account sees, except deleted ones."""
        pages = self._pages("/api/2.0/mlflow/experiments/search", {}, "listing experiments")
        return [str(found["experiment_id"]) for page in pages for found in page.get("experiments", [])]

    def write_spans(self, request: bytes, experiment_id: str) -> None:
        """Store the spans of an encoded OTLP request, all or none; spans stored before are overwritten.

        Takes one POST.
        """
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            EXPERIMENT_HEADER: experiment_id,
        }
        body = gzip.compress(request, _GZIP_LEVEL)
        response = self._send("POST", "/v1/traces", data=body, headers=headers)
        if response.status_code == requests.codes.not_found and not _error_code(response):
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"The MLflow server at {self._settings.shown_uri} has no /v1/traces: start it with plain "
                "`mlflow server` (no --gunicorn-opts or --waitress-opts), and let proxies pass that path.",
            )
        if response.status_code == requests.codes.not_implemented:
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"The MLflow server at {self._settings.shown_uri} keeps its data in files, which cannot hold "
                "spans: start it with --backend-store-uri sqlite:///mlflow.db or another database.",
            )
        self._check_batch(response, f"writing spans to the experiment {experiment_id}")

    def trace_info(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace without spans in the form of MLflow's API; None if missing.

        Takes one GET.
        """
        response = self._send("GET", f"/api/3.0/mlflow/traces/{trace_id}")
        action = f"looking up the trace {trace_id}"
        return self._found(response, action, lambda answer: answer["trace"]["trace_info"])

    def write_feedback(self, changes: Sequence[tuple[Change, MlflowFeedback]]) -> None:
        """Write scores, in any order. Spans and other fields of the traces do not change."""
        # After a failure, `map` cancels the requests that wait, and the block waits for the others: one that
        # outlasted this call could overwrite a newer score.
        with ThreadPoolExecutor(_FEEDBACK_THREADS, thread_name_prefix="mlflow-feedback") as pool:
            for _ in pool.map(self._write_one_feedback, changes):
                pass

    def name_trace(self, trace_id: str, name: str) -> None:
        """Set the name of a stored trace.

        Takes one PATCH.
        """
        tag = {"key": TRACE_NAME_TAG, "value": name}
        response = self._send("PATCH", f"/api/3.0/mlflow/traces/{trace_id}/tags", json=tag)
        self._session.check(response, f"naming {trace_id}")

    def close(self) -> None:
        """Close connections."""
        self._session.close()

    def _write_one_feedback(self, change_and_score: tuple[Change, MlflowFeedback]) -> None:
        change, feedback = change_and_score
        trace = f"/api/3.0/mlflow/traces/{feedback.trace_id}"
        if change is Change.CREATE:
            response = self._send("POST", f"{trace}/assessments", json={"assessment": feedback.to_mlflow()})
        elif change is Change.TAG:
            tag = {"key": feedback.name, "value": feedback.tag_text}
            response = self._send("PATCH", f"{trace}/tags", json=tag)
        else:
            request = {"assessment": feedback.to_mlflow(), "update_mask": "feedback,rationale,metadata"}
            if change is Change.MARK:
                request = {"assessment": {"metadata": MARK}, "update_mask": "metadata"}
            response = self._send("PATCH", f"{trace}/assessments/{feedback.id}", json=request)
        action = f"writing the score {feedback.name!r} of {feedback.trace_id}"
        if _error_code(response) == NOT_THERE:  # deleted since it was looked up: look again
            raise _failed(FailureKind.UNAVAILABLE, response, action)
        self._check_batch(response, action)

    def _check_run(self, response: requests.Response, action: str) -> None:
        """Check an answer about a run, which may not exist."""
        if _error_code(response) == NOT_THERE:
            raise _failed(FailureKind.REFUSED, response, action)
        self._session.check(response, action)

    def _check_batch(self, response: requests.Response, action: str) -> None:
        if _error_code(response) in _REJECTED_CODES:
            raise _failed(FailureKind.REJECTED, response, action)
        self._session.check(response, action, of_batch=True)

    def _pages(self, path: str, search: dict[str, Any], action: str) -> Iterator[dict[str, Any]]:
        """Yield every page of a search."""
        token = None
        while True:
            request = {**search, "max_results": MAX_FOUND, **({"page_token": token} if token else {})}
            response = self._send("POST", path, json=request)
            self._session.check(response, action)
            with self._reading(response):
                page = response.json()
                token = page.get("next_page_token")
            yield page
            if not token:
                return

    def _experiment(self, route: str, params: dict[str, str]) -> Experiment | None:
        response = self._send("GET", f"/api/2.0/mlflow/experiments/{route}", params=params)
        return self._found(response, "looking up an experiment", _experiment)

    def _found(self, response: requests.Response, action: str, read: Callable[[Any], Found]) -> Found | None:
        """Read the JSON of an answer; return None if MLflow has no such thing."""
        if _error_code(response) == NOT_THERE:
            return None
        self._session.check(response, action)
        with self._reading(response):
            found = read(response.json())
        return found

    def _send(self, method: str, path: str, **request: Any) -> requests.Response:
        return self._session.send(method, self._settings.uri + path, **request)

    def _reading(self, response: requests.Response) -> AbstractContextManager[None]:
        return self._session.reading(response, "an MLflow tracking server")


def _experiment(answer: Any) -> Experiment:
    found = answer["experiment"]
    is_deleted = found.get("lifecycle_stage") == "deleted"
    return Experiment(str(found["experiment_id"]), str(found["name"]), is_deleted)


def _session(settings: MlflowSettings) -> HttpSession:
    server = HttpServer(
        name=f"the MLflow server at {settings.shown_uri}",
        address="MLFLOW_TRACKING_URI",
        timeout="MLFLOW_HTTP_REQUEST_TIMEOUT",
        ca="MLFLOW_TRACKING_SERVER_CERT_PATH",
        client_certificate="MLFLOW_TRACKING_CLIENT_CERT_PATH",
        advice=_advice(settings),
    )
    return HttpSession(
        server,
        settings.timeout,
        auth=_auth(settings),
        verify=settings.verify_tls,
        client_certificate=settings.client_cert,
    )


def _advice(settings: MlflowSettings) -> dict[int, str]:
    """Return the remedies for 401 and 403, by the credentials that were sent."""
    if settings.username and settings.password:
        whom = f"the user {settings.username!r}"
        fix = "correct MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    elif settings.token:
        whom = "the bearer of this token"
        fix = "correct MLFLOW_TRACKING_TOKEN"
    else:
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return {401: fix, 403: fix}
    return {
        401: f"{whom} is not let in; {fix}",
        403: f"{whom} may not do that; have the permission granted, or {fix}",
    }


def _auth(settings: MlflowSettings) -> AuthBase | None:
    if settings.username and settings.password:
        return HTTPBasicAuth(settings.username.encode(), settings.password.encode())
    return BearerAuth(settings.token) if settings.token else None


def _failed(kind: FailureKind, response: requests.Response, action: str) -> UndeliveredError:
    return UndeliveredError(kind, f"MLflow answered {described(response)} when {action}.")


def _error_code(response: requests.Response) -> str | None:
    """Return the error code in MLflow's answer; None without one."""
    if response.ok:
        return None
    try:
        code = response.json()["error_code"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(code)
