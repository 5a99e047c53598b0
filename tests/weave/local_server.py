"""Weave's server: ``local_server.py --store chdb --database DIRECTORY``.

Runs in ``.venv-weave``, where weave is installed, never in the project's environment. The storage code is
weave's, unmodified; what W&B keeps to itself is stood in for: the HTTP routes, the GraphQL answers that
``weave.init`` and our exporter ask for, and the translation of project and run names to internal ids.

Stores:
    chdb    weave's ClickHouse server on in-process ClickHouse: what the hosted service runs
    null    keeps nothing; for measuring clients

Prints the port it listens on. ``GET /_test/stats`` says how often each path was asked for and how many calls
were received. ``POST /_test/fail`` has the next requests fail, and ``/_test/recover`` undoes it:
    path, status, times  which, how (status 0: the connection is cut), and how many
    skip                 after so many that pass
    after                having stored what they carry
    headers              of the answer
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import socket
import sys
import types
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it downloads one
os.environ.setdefault("DD_TRACE_ENABLED", "false")
os.environ.setdefault("WEAVE_DISABLED", "true")

# Imported by the server for a few names of features not used here; they are not in its wheel.
for absent in (
    "weave.trace_server.workers.evaluate_model_worker.evaluate_model_worker",
    "weave.trace_server.model_providers",
    "weave.trace_server.model_providers.model_providers",
):
    module = types.ModuleType(absent)
    module.__path__ = []

    def _anything(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object

    module.__getattr__ = _anything  # type: ignore[method-assign]
    sys.modules[absent] = module

import uvicorn  # noqa: E402
from fastapi import FastAPI, Request  # noqa: E402
from fastapi.responses import JSONResponse, Response, StreamingResponse  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: E402
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from weave.trace_server import trace_server_interface as tsi  # noqa: E402
from weave.trace_server.agents.types import AgentSpansQueryReq, GenAIOTelExportReq  # noqa: E402
from weave.trace_server.errors import handle_server_exception  # noqa: E402
from weave.trace_server.external_to_internal_trace_server_adapter import (  # noqa: E402
    ExternalTraceServer,
    IdConverter,
)

USER = base64.b64encode(b"local").decode()
ENTITY = "local-team"


class Ids(IdConverter):
    """Convert ``entity/project`` to ids like the hosted server's, and back."""

    def ext_to_int_project_id(self, project_id: str) -> str:
        return base64.b64encode(project_id.encode()).decode()

    def int_to_ext_project_id(self, project_id: str) -> str:
        return base64.b64decode(project_id).decode()

    def ext_to_int_run_id(self, run_id: str) -> str:
        entity, project, run = run_id.split("/")
        return f"{self.ext_to_int_project_id(f'{entity}/{project}')}:{run}"

    def int_to_ext_run_id(self, run_id: str) -> str:
        project, run = run_id.split(":")
        return f"{self.int_to_ext_project_id(project)}/{run}"

    def ext_to_int_user_id(self, user_id: str) -> str:
        return user_id

    def int_to_ext_user_id(self, user_id: str) -> str:
        return user_id


def chdb_store(directory: str) -> Any:
    import clickhouse_connect
    from weave.trace_server.clickhouse_trace_server_batched import ClickHouseTraceServer

    client = clickhouse_connect.get_client(interface="chdb", path=directory)
    client.close = lambda *_, **__: None  # one in-process engine for all threads
    ClickHouseTraceServer._mint_client = lambda self: client
    store = ClickHouseTraceServer(host="chdb")
    client.command("CREATE DATABASE IF NOT EXISTS default")
    store._run_migrations()
    return store


def known(model: Any, fields: dict[str, Any]) -> Any:
    """The model, from those fields that this version of weave knows."""
    return model.model_validate({name: fields[name] for name in model.model_fields if name in fields})


class Cut(Response):
    """No answer: half of one, and the connection is closed."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]}
        await send(start)
        raise ConnectionResetError("as the test wishes")


class LocalServer:
    """The routes that clients use, over one store."""

    def __init__(self, store: Any) -> None:
        self.app = FastAPI(lifespan=self.announce_port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = ExternalTraceServer(store, Ids()) if store is not None else None
        self.store = store
        self.projects: set[tuple[str, str]] = set()
        self.faults: list[dict[str, Any]] = []
        self.requests: Counter[str] = Counter()
        self.calls_received = 0
        self.app.middleware("http")(self.observe)
        self.add_routes()

    @asynccontextmanager
    async def announce_port(self, _: FastAPI) -> AsyncIterator[None]:
        print(self.listener.getsockname()[1], flush=True)
        yield

    async def observe(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Count, ask for a key, inject faults, and answer errors as weave's server does."""
        path = request.url.path
        if path.startswith("/_test/"):
            return await answer(request)
        self.requests[path] += 1
        key = given_key(request)
        if path != "/server_info" and key is None:
            return JSONResponse({"reason": "Unauthorized"}, 401)
        if path != "/server_info" and key == "0" * 40:
            return JSONResponse({"reason": "API key is not valid"}, 401)
        fault = next((f for f in self.faults if f["path"] in path and f["times"] > 0), None)
        if fault is not None and fault.get("skip", 0) > 0:
            fault["skip"] -= 1
        elif fault is not None:
            fault["times"] -= 1
            if fault.get("after"):
                await answer(request)
            if fault["status"] == 0:
                return Cut()
            return JSONResponse({"reason": "injected"}, fault["status"], fault.get("headers"))
        try:
            return await answer(request)
        except Exception as error:
            said = handle_server_exception(error)
            return JSONResponse(said.message, said.status_code)

    def add_routes(self) -> None:
        post = self.app.post

        @post("/_test/fail")
        async def fail(request: Request) -> Any:
            self.faults.append(json.loads(await request.body()))

        @post("/_test/recover")
        async def recover() -> Any:
            self.faults.clear()

        @post("/_test/forget_projects")
        async def forget_projects() -> Any:
            self.projects.clear()

        @self.app.get("/_test/stats")
        async def stats() -> Any:
            return {"requests": dict(self.requests), "calls": self.calls_received}

        @post("/graphql")
        async def graphql(request: Request) -> Any:
            asked = json.loads(await request.body())
            return {"data": self.graphql(asked["query"], asked.get("variables") or {})}

        @self.app.get("/server_info")
        async def server_info() -> Any:
            return {"min_required_weave_python_version": "0.0.1", "trace_server_version": None}

        @post("/v2/{entity}/{project}/calls/complete")
        async def complete(entity: str, project: str, request: Request) -> Any:
            batch = (await body(request))["batch"]
            self.calls_received += len(batch)
            if self.server is None:
                return {}
            self.insist_on(entity, project)
            for call in batch:
                call["wb_user_id"] = USER
            return self.server.calls_complete(tsi.CallsUpsertCompleteReq(batch=batch))

        @post("/v2/{entity}/{project}/call/start")
        async def start(entity: str, project: str, request: Request) -> Any:
            if self.server is None:
                return {}
            self.insist_on(entity, project)
            started = {**(await body(request))["start"], "wb_user_id": USER}
            return self.server.call_start_v2(tsi.CallStartV2Req(start=started))

        @post("/v2/{entity}/{project}/call/end")
        async def end(entity: str, project: str, request: Request) -> Any:
            if self.server is None:
                return {}
            return self.server.call_end_v2(tsi.CallEndV2Req(end=(await body(request))["end"]))

        @post("/call/upsert_batch")
        async def upsert_batch(request: Request) -> Any:
            batch = (await body(request))["batch"]
            self.calls_received += sum(item["mode"] == "start" for item in batch)
            if self.server is None:
                return {"res": []}
            return {"res": [self.upsert(item["mode"], item["req"]) for item in batch]}

        @post("/otel/v1/traces")
        async def otel(request: Request) -> Any:
            sent = ExportTraceServiceRequest.FromString(await unpacked(request))
            self.calls_received += sum(
                len(scope.spans) for resource in sent.resource_spans for scope in resource.scope_spans
            )
            done = ExportTraceServiceResponse()
            for project, spans in by_project(request, sent).items() if self.server is not None else ():
                export = tsi.OTelExportReq(project_id=project, processed_spans=spans, wb_user_id=USER)
                if rejected := self.server.otel_export(export).partial_success:  # type: ignore[union-attr]
                    done.partial_success.rejected_spans += rejected.rejected_spans
                    done.partial_success.error_message = rejected.error_message
            return Response(done.SerializeToString(), media_type="application/x-protobuf")

        @post("/agents/otel/v1/traces")
        async def agents(request: Request) -> Any:
            sent = ExportTraceServiceRequest.FromString(await unpacked(request))
            done = ExportTraceServiceResponse()
            for project, spans in by_project(request, sent).items() if self.server is not None else ():
                export = GenAIOTelExportReq(project_id=project, processed_spans=spans, wb_user_id=USER)
                stored = self.server.genai_otel_export(export)  # type: ignore[union-attr]
                done.partial_success.rejected_spans += stored.rejected_spans
                done.partial_success.error_message = stored.error_message
            return Response(done.SerializeToString(), media_type="application/x-protobuf")

        @post("/agents/spans/query")
        async def agent_spans(request: Request) -> Any:
            return self.server.agent_spans_query(known(AgentSpansQueryReq, await body(request)))  # type: ignore[union-attr]

        @post("/calls/stream_query")
        async def stream_query(request: Request) -> Any:
            if self.server is None:
                return Response()
            found = list(self.server.calls_query_stream(known(tsi.CallsQueryReq, await body(request))))
            lines = (call.model_dump_json() + "\n" for call in found)
            return StreamingResponse(lines, media_type="application/jsonl")

        @post("/feedback/create")
        async def feedback(request: Request) -> Any:
            return self.server.feedback_create(self.feedback(await body(request)))  # type: ignore[union-attr]

        @post("/feedback/batch/create")
        async def feedback_batch(request: Request) -> Any:
            if self.server is None:
                return {"res": []}
            batch = [self.feedback(entry) for entry in (await body(request))["batch"]]
            return self.server.feedback_create_batch(tsi.FeedbackCreateBatchReq(batch=batch))

        @post("/threads/stream_query")
        async def threads(request: Request) -> Any:
            found = self.server.threads_query_stream(known(tsi.ThreadsQueryReq, await body(request)))  # type: ignore[union-attr]
            lines = [thread.model_dump_json() + "\n" for thread in found]
            return StreamingResponse(iter(lines), media_type="application/jsonl")

        @post("/file/create")
        @post("/files/create")
        async def file_create(request: Request) -> Any:
            if self.server is None:
                return {"digest": "none"}
            form = await request.form()
            file = form["file"]
            made = tsi.FileCreateReq(
                project_id=form["project_id"], name=file.filename or "file", content=await file.read()
            )
            return self.server.file_create(made)

        @post("/obj/create")
        async def obj_create(request: Request) -> Any:
            if self.server is None:
                return {"digest": "none"}
            made = {**(await body(request))["obj"], "wb_user_id": USER}
            return self.server.obj_create(tsi.ObjCreateReq(obj=known(tsi.ObjSchemaForInsert, made)))

        for path, model, method in (
            ("/call/read", tsi.CallReadReq, "call_read"),
            ("/call/update", tsi.CallUpdateReq, "call_update"),
            ("/calls/delete", tsi.CallsDeleteReq, "calls_delete"),
            ("/calls/query_stats", tsi.CallsQueryStatsReq, "calls_query_stats"),
            ("/calls/usage", tsi.CallsUsageReq, "calls_usage"),
            ("/feedback/query", tsi.FeedbackQueryReq, "feedback_query"),
            ("/feedback/purge", tsi.FeedbackPurgeReq, "feedback_purge"),
            ("/obj/read", tsi.ObjReadReq, "obj_read"),
            ("/refs/read_batch", tsi.RefsReadBatchReq, "refs_read_batch"),
        ):
            post(path)(self.plain(model, method))

    def plain(self, model: Any, method: str) -> Callable[[Request], Awaitable[Any]]:
        """A route that does nothing but call the server."""

        async def answer(request: Request) -> Any:
            if self.server is None:
                return {}
            return getattr(self.server, method)(known(model, {**(await body(request)), "wb_user_id": USER}))

        return answer

    def graphql(self, query: str, variables: dict[str, Any]) -> Any:
        """As W&B answers the few questions asked here.

        A project exists once it was created.
        """
        entity = variables.get("entity") or variables.get("entityName") or ENTITY
        if "upsertModel" in query:
            self.projects.add((entity, variables["name"]))
            return {"upsertModel": {"model": {"name": variables["name"], "description": None}}}
        if "viewer" in query:
            return {"viewer": {"username": "local", "defaultEntity": {"name": ENTITY}}}
        if "project(" in query:
            exists = (entity, variables["name"]) in self.projects
            return {"project": {"name": variables["name"]} if exists else None}
        return {}

    def insist_on(self, entity: str, project: str) -> None:
        """The hosted server takes calls of existing projects only."""
        from weave.trace_server.errors import ProjectNotFound

        if (entity, project) not in self.projects:
            raise ProjectNotFound(f"Project {entity}/{project} not found")

    def upsert(self, mode: str, request: dict[str, Any]) -> Any:
        if mode == "start":
            start = known(tsi.StartedCallSchemaForInsert, {**request["start"], "wb_user_id": USER})
            return self.server.call_start(tsi.CallStartReq(start=start)).model_dump()  # type: ignore[union-attr]
        end = known(tsi.EndedCallSchemaForInsert, request["end"])
        return self.server.call_end(tsi.CallEndReq(end=end)).model_dump()  # type: ignore[union-attr]

    def feedback(self, fields: dict[str, Any]) -> Any:
        return known(tsi.FeedbackCreateReq, {**fields, "wb_user_id": USER})


def given_key(request: Request) -> str | None:
    """The API key, by either way that W&B takes it."""
    given = request.headers.get("authorization", "")
    if given.startswith("Basic "):
        return base64.b64decode(given[6:]).decode().removeprefix("api:")
    return request.headers.get("wandb-api-key")


def by_project(request: Request, sent: ExportTraceServiceRequest) -> dict[str, list[Any]]:
    """Spans by the project that the header ``project_id`` names, else their resource."""
    found: dict[str, list[Any]] = {}
    for spans in sent.resource_spans:
        named = {entry.key: entry.value.string_value for entry in spans.resource.attributes}
        resource = f"{named.get('wandb.entity')}/{named.get('wandb.project')}"
        project_id = request.headers.get("project_id") or resource
        entity, project = project_id.split("/")
        found.setdefault(project_id, []).append(
            tsi.ProcessedResourceSpans(entity=entity, project=project, run_id=None, resource_spans=spans)
        )
    return found


async def unpacked(request: Request) -> bytes:
    raw = await request.body()
    return gzip.decompress(raw) if request.headers.get("content-encoding") == "gzip" else raw


async def body(request: Request) -> Any:
    return json.loads(await unpacked(request))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", choices=["chdb", "null"], default="chdb")
    parser.add_argument("--database", default="")
    options = parser.parse_args()
    make = {"chdb": chdb_store, "null": lambda _: None}[options.store]
    local = LocalServer(make(options.database))
    config = uvicorn.Config(local.app, log_level="warning", loop="asyncio", lifespan="on")
    uvicorn.Server(config).run(sockets=[local.listener])


if __name__ == "__main__":
    main()
