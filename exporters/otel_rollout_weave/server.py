"""Send the exporter's requests to W&B's GraphQL API and to Weave's trace server; find projects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from urllib.parse import quote

import orjson
import requests
from requests.auth import HTTPBasicAuth

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.http import HttpServer, HttpSession
from otel_rollout_weave.settings import WeaveSettings, valid_name

DEFAULT_PROJECT: Final = "uncategorized"
"""W&B's own name for the project of runs that name none."""
MAX_REMEMBERED: Final = 20_000
"""Maximum calls, and maximum scores, remembered as sent. A batch that is sent again needs only its own."""
_PAGE: Final = 1000
"""Maximum calls that one answer of the server lists."""
_CHECK_KEY: Final = (
    "check WANDB_API_KEY (or `wandb login`) and whether it may write there (WANDB_ENTITY, WANDB_PROJECT)"
)

# These are the queries of `weave.init`.
_DEFAULT_ENTITY: Final = "query DefaultEntity { viewer { username defaultEntity { name } } }"
_PROJECT: Final = """query Project($name: String!, $entity: String!) {
  project(name: $name, entityName: $entity) { name } }"""
_CREATE_PROJECT: Final = """mutation UpsertModel($name: String!, $entity: String!) {
  upsertModel(input: { name: $name, entityName: $entity }) { model { name } } }"""


class Server:
    """One W&B account. A request that fails raises :class:`UndeliveredError`."""

    def __init__(self, settings: WeaveSettings) -> None:
        self._settings = settings
        self._wandb = _session("the W&B server", settings.base_url, "WANDB_BASE_URL", settings)
        self._traces = _session(
            "the Weave trace server", settings.trace_url, "WANDB_BASE_URL and WF_TRACE_SERVER_URL", settings
        )

    def ping(self) -> None:
        """Check that a Weave trace server answers."""
        response = self._traces.send("GET", f"{self._settings.trace_url}/server_info")
        self._traces.check(response, "asking what it is")
        with self._reading(response):
            response.json()

    def default_entity(self) -> str | None:
        """Return the account's default entity; None without one."""
        viewer = self._ask("asking for the default entity", _DEFAULT_ENTITY).get("viewer")
        if not viewer:
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"{self._settings.base_url} knows no such API key: check WANDB_API_KEY or `wandb login`.",
            )
        name = (viewer.get("defaultEntity") or {}).get("name") or viewer.get("username")
        return str(name) if name else None

    def project_name(self, entity: str, project: str) -> str | None:
        """Return a project's name as the server spells it; None without such a project."""
        variables = {"entity": entity, "name": project}
        found = self._ask(f"looking up the project {entity}/{project}", _PROJECT, variables).get("project")
        return str(found["name"]) if found else None

    def create_project(self, entity: str, project: str) -> str:
        """Create a project, unless it exists, and return its name on the server."""
        variables = {"entity": entity, "name": project}
        action = f"creating the project {entity}/{project}"
        made = self._ask(action, _CREATE_PROJECT, variables).get("upsertModel") or {}
        if not made.get("model"):
            raise UndeliveredError(FailureKind.REFUSED, f"W&B does not say why it failed when {action}.")
        return str(made["model"]["name"])

    def write_calls(self, project_id: str, calls: Sequence[bytes]) -> None:
        """Store finished calls, all or none."""
        body = b'{"batch":[' + b",".join(calls) + b"]}"
        path = f"/v2/{quote(project_id)}/calls/complete"  # the slash between entity and project stays
        self._post(path, body, f"writing calls to {project_id}", of_batch=True)

    def start_call(self, project_id: str, call: bytes) -> None:
        """Store a call that has not ended."""
        body = b'{"start":' + call + b"}"
        self._post(f"/v2/{quote(project_id)}/call/start", body, f"announcing a call in {project_id}")

    def delete_calls(self, project_id: str, ids: Sequence[str]) -> None:
        """Delete calls, and the calls below them; unknown ids are ignored."""
        body = orjson.dumps({"project_id": project_id, "call_ids": ids})
        self._post("/calls/delete", body, f"deleting calls of {project_id}")

    def find_calls(
        self, project_id: str, columns: Sequence[str], action: str, **criteria: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield calls that match, page by page, with the given columns."""
        offset = 0
        while True:
            body = {
                "project_id": project_id,
                "columns": columns,
                "limit": _PAGE,
                "offset": offset,
                **criteria,
            }
            response = self._post("/calls/stream_query", orjson.dumps(body), action)
            with self._reading(response):
                page = [orjson.loads(line) for line in response.content.splitlines() if line]
            yield from page
            if len(page) < _PAGE:
                return
            offset += _PAGE

    def write_feedback(self, feedback: Sequence[dict[str, Any]]) -> None:
        """Store feedback; feedback with an existing id is stored in addition."""
        body = orjson.dumps({"batch": feedback})
        self._post("/feedback/batch/create", body, "writing scores", of_batch=True)

    def find_feedback(self, project_id: str, ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the payloads stored under each feedback id; there may be several."""
        body = {"project_id": project_id, "query": _one_of(ids), "fields": ["id", "payload"]}
        response = self._post("/feedback/query", orjson.dumps(body), "looking for scores already there")
        found: dict[str, list[dict[str, Any]]] = {}
        with self._reading(response):
            for row in response.json()["result"]:
                found.setdefault(str(row["id"]), []).append(dict(row["payload"]))
        return found

    def purge_feedback(self, project_id: str, ids: Sequence[str]) -> None:
        """Delete feedback by id; unknown ids are ignored."""
        body = orjson.dumps({"project_id": project_id, "query": _one_of(ids)})
        self._post("/feedback/purge", body, "replacing scores", of_batch=True)

    def close(self) -> None:
        """Close connections."""
        self._wandb.close()
        self._traces.close()

    def _ask(self, action: str, query: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
        """Send W&B a GraphQL query and return the answer's data."""
        body = orjson.dumps({"query": query, "variables": variables or {}})
        response = self._wandb.send("POST", f"{self._settings.base_url}/graphql", data=body)
        self._wandb.check(response, action)
        with self._wandb.reading(response, "a W&B server"):
            answer = response.json()
            data, errors = answer.get("data"), answer.get("errors") or []
        if errors or not isinstance(data, dict):
            words = "; ".join(str(error.get("message", error)) for error in errors) or "no data"
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"W&B refuses when {action}: {words[:300]}. Check WANDB_ENTITY, WANDB_PROJECT and the rights "
                "of the API key.",
            )
        return data

    def _reading(self, response: requests.Response) -> AbstractContextManager[None]:
        return self._traces.reading(response, "a Weave trace server")

    def _post(self, path: str, body: bytes, action: str, *, of_batch: bool = False) -> requests.Response:
        response = self._traces.send("POST", self._settings.trace_url + path, data=body)
        self._traces.check(response, action, of_batch=of_batch)
        return response


def is_question_refused(error: UndeliveredError) -> bool:
    """Return whether the server answers and grants access, but refuses the query."""
    return error.failure.kind is not FailureKind.UNAVAILABLE and error.status not in (401, 403)


def _one_of(ids: Sequence[str]) -> dict[str, Any]:
    """Make the query for feedback with one of these ids."""
    return {"$expr": {"$or": [{"$eq": [{"$getField": "id"}, {"$literal": id_}]} for id_ in ids]}}


def _session(name: str, url: str, address: str, settings: WeaveSettings) -> HttpSession:
    server = HttpServer(
        name=f"{name} at {url}",
        address=address,
        timeout="timeout=",
        ca="REQUESTS_CA_BUNDLE",
        advice={401: _CHECK_KEY, 403: _CHECK_KEY},
    )
    return HttpSession(
        server,
        settings.timeout,
        auth=HTTPBasicAuth("api", settings.api_key),
        headers={"Content-Type": "application/json"},
    )


class Projects:
    """Ids (``entity/project``) of projects. Used under the exporter's lock."""

    def __init__(self, server: Server, settings: WeaveSettings) -> None:
        self._server = server
        self._settings = settings
        self._entity = settings.entity
        self._id_by_name: dict[str, str] = {}

    def id_of(self, project: str | None) -> str:
        """Return the id of a rollout project's Weave project; create a missing one.

        Args:
            project: the rollout's project; None if unknown.

        Raises:
            UndeliveredError: the account may not see or create the project (REFUSED), or W&B did not answer.
        """
        name = self._settings.project or valid_name(project or DEFAULT_PROJECT)
        if name not in self._id_by_name:
            entity = self.entity()
            found = self._server.project_name(entity, name) or self._server.create_project(entity, name)
            self._id_by_name[name] = f"{entity}/{found}"
        return self._id_by_name[name]

    def known_id(self, project: str | None) -> str | None:
        """Return a project's id if :meth:`id_of` has looked it up, else None."""
        return self._id_by_name.get(self._settings.project or valid_name(project or DEFAULT_PROJECT))

    def known_ids(self) -> list[str]:
        """Return all ids that :meth:`id_of` has looked up."""
        return list(self._id_by_name.values())

    def entity(self) -> str:
        """Return the entity of the settings, else the account's default entity."""
        if self._entity is None:
            self._entity = self._server.default_entity()
        if self._entity is None:
            raise UndeliveredError(
                FailureKind.REFUSED,
                "The W&B account has no default entity: set WANDB_ENTITY (or entity=) to a user or team.",
            )
        return self._entity

    def forget(self) -> None:
        """Clear the cache, so that every project is looked up again."""
        self._id_by_name.clear()
