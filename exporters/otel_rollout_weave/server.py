"""The requests the exporter makes: W&B's GraphQL for projects, Weave's trace server for calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import orjson
import requests
from requests.auth import HTTPBasicAuth

from otel_rollout.exporting.api import FailureKind, is_cut_off, retry_after
from otel_rollout_weave.errors import UndeliveredError
from otel_rollout_weave.settings import Settings

_CONNECT_TIMEOUT: Final = 5.0
_PATIENCE: Final = frozenset({408, 425, 429, 499})
_BAD_BATCH: Final = frozenset({400, 409, 413, 422})
_PAGE: Final = 1000

# The questions that `weave.init` asks.
_DEFAULT_ENTITY: Final = "query DefaultEntity { viewer { username defaultEntity { name } } }"
_PROJECT: Final = """query Project($name: String!, $entity: String!) {
  project(name: $name, entityName: $entity) { name } }"""
_CREATE_PROJECT: Final = """mutation UpsertModel($name: String!, $entity: String!) {
  upsertModel(input: { name: $name, entityName: $entity }) { model { name } } }"""


class Server:
    """One W&B account. What fails raises :class:`UndeliveredError`, and may be tried again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session = requests.Session()
        self._session.auth = HTTPBasicAuth("api", settings.api_key)

    def ping(self) -> None:
        """See whether the trace server is one."""
        answer = self._send("GET", f"{self._settings.trace_url}/server_info", None, "asking what it is")
        try:
            answer.json()
        except ValueError:
            raise self._not_weave(answer) from None

    def default_entity(self) -> str | None:
        """The entity that the account's projects belong to where none is named."""
        viewer = self._ask("asking for the default entity", _DEFAULT_ENTITY).get("viewer")
        if not viewer:
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"{self._settings.base_url} knows no such API key: check WANDB_API_KEY or `wandb login`.",
            )
        name = (viewer.get("defaultEntity") or {}).get("name") or viewer.get("username")
        return str(name) if name else None

    def project_name(self, entity: str, project: str) -> str | None:
        """The project's name as the server has it, or None where there is no such project."""
        variables = {"entity": entity, "name": project}
        found = self._ask(f"looking up the project {entity}/{project}", _PROJECT, variables).get("project")
        return str(found["name"]) if found else None

    def create_project(self, entity: str, project: str) -> str:
        """Create the project; that someone else just did is no failure. Its name, as the server has it."""
        variables = {"entity": entity, "name": project}
        doing = f"creating the project {entity}/{project}"
        made = self._ask(doing, _CREATE_PROJECT, variables).get("upsertModel") or {}
        if not made.get("model"):
            raise UndeliveredError(FailureKind.REFUSED, f"W&B does not say why it failed when {doing}.")
        return str(made["model"]["name"])

    def write_calls(self, project_id: str, calls: Sequence[bytes]) -> None:
        """Store finished calls, all or none."""
        body = b'{"batch":[' + b",".join(calls) + b"]}"
        self._post(f"/v2/{_path(project_id)}/calls/complete", body, f"writing calls to {project_id}")

    def start_call(self, project_id: str, call: bytes) -> None:
        """Store a call that has not ended."""
        body = b'{"start":' + call + b"}"
        self._post(f"/v2/{_path(project_id)}/call/start", body, f"announcing a call in {project_id}")

    def delete_calls(self, project_id: str, ids: Sequence[str]) -> None:
        """Delete calls, and what lies below them; those that do not exist are passed over."""
        body = orjson.dumps({"project_id": project_id, "call_ids": ids})
        self._post("/calls/delete", body, f"deleting calls of {project_id}")

    def find_calls(
        self, project_id: str, columns: Sequence[str], doing: str, **criteria: Any
    ) -> Iterator[dict[str, Any]]:
        """Calls that match, page by page, with the given columns."""
        offset = 0
        while True:
            body = {
                "project_id": project_id,
                "columns": columns,
                "limit": _PAGE,
                "offset": offset,
                **criteria,
            }
            answer = self._post("/calls/stream_query", orjson.dumps(body), doing)
            try:
                page = [orjson.loads(line) for line in answer.content.splitlines() if line]
            except ValueError:
                raise self._not_weave(answer) from None
            yield from page
            if len(page) < _PAGE:
                return
            offset += _PAGE

    def write_feedback(self, feedback: Sequence[dict[str, Any]]) -> None:
        """Store feedback; an id that exists is stored a second time."""
        self._post("/feedback/batch/create", orjson.dumps({"batch": feedback}), "writing scores")

    def find_feedback(self, project_id: str, ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """The payloads of feedback by its id; an id that was stored twice has two."""
        body = {"project_id": project_id, "query": _one_of(ids), "fields": ["id", "payload"]}
        answer = self._post("/feedback/query", orjson.dumps(body), "looking for scores already there")
        found: dict[str, list[dict[str, Any]]] = {}
        try:
            for row in answer.json()["result"]:
                found.setdefault(str(row["id"]), []).append(dict(row["payload"]))
        except (ValueError, KeyError, TypeError):
            raise self._not_weave(answer) from None
        return found

    def purge_feedback(self, project_id: str, ids: Sequence[str]) -> None:
        """Delete feedback by id; ids that do not exist are passed over."""
        body = orjson.dumps({"project_id": project_id, "query": _one_of(ids)})
        self._post("/feedback/purge", body, "replacing scores")

    def close(self) -> None:
        """Give back connections."""
        self._session.close()

    def _ask(self, doing: str, query: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
        url = f"{self._settings.base_url}/graphql"
        answer = self._send("POST", url, orjson.dumps({"query": query, "variables": variables or {}}), doing)
        try:
            body = answer.json()
            data, errors = body.get("data"), body.get("errors") or []
        except (ValueError, AttributeError):
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"{self._settings.base_url} answers, but not as a W&B server: check WANDB_BASE_URL.",
            ) from None
        if errors or not isinstance(data, dict):
            said = "; ".join(str(error.get("message", error)) for error in errors) or "no data"
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"W&B refuses when {doing}: {said[:300]}. Check WANDB_ENTITY, WANDB_PROJECT and the rights "
                "of the API key.",
            )
        return data

    def _post(self, path: str, body: bytes, doing: str) -> requests.Response:
        return self._send("POST", self._settings.trace_url + path, body, doing)

    def _send(self, method: str, url: str, body: bytes | None, doing: str) -> requests.Response:
        timeout = self._settings.timeout
        try:
            answer = self._session.request(
                method,
                url,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=(min(_CONNECT_TIMEOUT, timeout), timeout),
                allow_redirects=False,  # a redirected POST would become a GET, and a login page an answer
            )
        except requests.exceptions.SSLError as error:
            if is_cut_off(error):
                raise UndeliveredError(
                    FailureKind.UNAVAILABLE, f"The TLS connection to {url} was cut off.", unknown=True
                ) from None
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"No trusted TLS connection to {url}: {error}. Set REQUESTS_CA_BUNDLE to the CA bundle that "
                "signed its certificate.",
            ) from None
        except requests.exceptions.ConnectTimeout:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE, f"The W&B server at {url} cannot be reached: no answer in time."
            ) from None
        except requests.exceptions.Timeout:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE,
                f"The W&B server did not answer within {timeout:g} s when {doing}.",
                unknown=True,
            ) from None
        except requests.exceptions.RequestException as error:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE,
                f"The W&B server at {url} cannot be reached: {_reason(error)}.",
                unknown=True,
            ) from None
        _raise_for_status(answer, doing)
        return answer

    def _not_weave(self, answer: requests.Response) -> UndeliveredError:
        return UndeliveredError(
            FailureKind.REFUSED,
            f"{self._settings.trace_url} answers, but not as a Weave trace server ({_described(answer)}): "
            "check WANDB_BASE_URL and WF_TRACE_SERVER_URL.",
        )


def _one_of(ids: Sequence[str]) -> dict[str, Any]:
    """Weave's query for what has one of these ids."""
    return {"$expr": {"$or": [{"$eq": [{"$getField": "id"}, {"$literal": id_}]} for id_ in ids]}}


def _path(project_id: str) -> str:
    return quote(project_id)  # which leaves the slash between entity and project


def _reason(error: BaseException) -> str:
    """What the operating system said; the HTTP libraries wrap it in words that differ each time."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _raise_for_status(answer: requests.Response, doing: str) -> None:
    """Turn a status that is no success into what it means for a batch."""
    status = answer.status_code
    if 200 <= status < 300:
        return
    said = f"W&B answered {_described(answer)} when {doing}"
    if status in (401, 403):
        raise UndeliveredError(
            FailureKind.REFUSED,
            f"{said}: check WANDB_API_KEY (or `wandb login`) and whether it may write there (WANDB_ENTITY, "
            "WANDB_PROJECT).",
            status=status,
        )
    if status in _BAD_BATCH:
        raise UndeliveredError(FailureKind.REJECTED, f"{said}.", status=status)
    if status in _PATIENCE or status >= 500:
        raise UndeliveredError(
            FailureKind.UNAVAILABLE,
            f"{said}.",
            retry_after(answer.headers),
            status=status,
            unknown=status not in _PATIENCE or status in (408, 499),
        )
    if 300 <= status < 400:
        said += f", pointing to {answer.headers.get('Location', 'nowhere')}"
    raise UndeliveredError(
        FailureKind.REFUSED, f"{said}: check WANDB_BASE_URL and WF_TRACE_SERVER_URL.", status=status
    )


def _described(answer: requests.Response) -> str:
    """Status, reason and the server's own words, if it has some and they are not a web page."""
    described = f"{answer.status_code} {answer.reason}"
    try:
        body = answer.json()
        words = body.get("reason") or body.get("detail") or body.get("message")
    except (ValueError, AttributeError):
        words = None
    return f"{described} ({str(words)[:500]})" if words else described
