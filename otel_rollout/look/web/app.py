"""Route requests to pages, and turn every problem into a short page."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.pages.rendering import render
from otel_rollout.look.web import run_pages
from otel_rollout.look.web.answers import Answers
from otel_rollout.look.web.links import ALL_RUNS, MLFLOW, RUN_PARAMETERS, ServedLinks, Trackers
from otel_rollout.look.web.live import Live, NotReadyError, utc
from otel_rollout.look.web.request import (
    PENDING_SECONDS,
    REFRESH_SECONDS,
    Asked,
    ChoiceError,
    PendingError,
)
from otel_rollout.look.web.snapshot import Snapshot
from otel_rollout.table.errors import TableError
from otel_rollout.table.filters import equals
from otel_rollout.table.select import QueryError

_THREADS: Final = 8
"""Maximum requests that are answered at once; others wait."""
_MAX_SENTENCE: Final = 1000
"""Maximum characters of a problem on a page."""
_TRACE_DIGITS: Final = 32
_logger = logging.getLogger("otel_rollout.web")

Page = Callable[[Asked], str]


class Site:
    """The pages of the runs in a table.

    Args:
        live: the versions of the table.
        run: id or experiment of the run that is shown for an address without a run; by default the newest.
    """

    def __init__(self, live: Live, run: str | None = None) -> None:
        self._live = live
        self._run = run
        self._reports = Answers(live)
        self._checks = Answers(live)
        self._trackers = Trackers()
        self._pages: dict[str, Page] = {
            "/run": run_pages.run,
            "/step": run_pages.step,
            "/timeline": run_pages.timeline,
            "/health": run_pages.health,
            "/group": run_pages.group,
            "/trajectories": run_pages.trajectories,
            "/trajectory": run_pages.trajectory,
            "/compare": run_pages.comparison,
        }

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route(ALL_RUNS, self._runs),
            Route(MLFLOW, self._mlflow),
            Route("/favicon.ico", lambda request: Response(status_code=204)),
            *(Route(path, self._page) for path in self._pages),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _unknown}, lifespan=_lifespan)

    def _runs(self, request: Request) -> Response:
        def page(snapshot: Snapshot) -> str:
            links = self._links(snapshot, None)
            now = time.time()
            if any(row.is_live(now) for row in snapshot.runs):
                links.refresh_seconds = REFRESH_SECONDS
            return run_pages.page_of_runs(snapshot, self._live.origin.location, links, now)

        return self._answered(request, page)

    def _page(self, request: Request) -> Response:
        def page(snapshot: Snapshot) -> str:
            given = dict(request.query_params)
            named = {name: given[name] for name in RUN_PARAMETERS if name in given}
            row = snapshot.row_of(named) if named else snapshot.row_named(self._run)
            links = self._links(snapshot, row.run)
            path, is_live = request.url.path, row.is_live(time.time())
            asked = Asked(path, given, snapshot, row, links, self._reports, self._checks, is_live)
            try:
                return self._pages[path](asked)
            except (QueryError, ViewerError) as error:
                found = error if isinstance(error, ChoiceError) else ChoiceError(str(error), asked.lists())
                raise found from None

        return self._answered(request, page)

    def _links(self, snapshot: Snapshot, run: Run | None) -> ServedLinks:
        """Return the links of a page, with a status that says when its data was read."""

        def elsewhere(trace_id: str) -> list[tuple[str, str]]:
            roots = snapshot.rows(f"SELECT span_id, project FROM roots WHERE {equals('trace_id', trace_id)}")  # noqa: S608
            named = ((root["span_id"], root["project"] or "") for root in roots[:1])
            return [link for names in named for link in self._trackers.links(trace_id, *names)]

        links = ServedLinks(run, elsewhere if self._trackers.are_known else lambda trace_id: [])
        links.status = f"read at {utc(snapshot.read_at)}"
        links.problem = self._live.problem
        return links

    def _answered(self, request: Request, page: Callable[[Snapshot], str]) -> Response:
        """Answer with a page, or with a sentence about the problem."""
        try:
            with self._live.snapshot() as snapshot:
                return HTMLResponse(page(snapshot))
        except (NotReadyError, PendingError) as error:
            return _problem("Not ready yet", str(error), 503, refresh_seconds=PENDING_SECONDS)
        except ChoiceError as error:
            title = "There is nothing to show" if error.status == 404 else "Several trajectories"
            return _problem(title, str(error), error.status, choices=error.choices)
        except (QueryError, ViewerError) as error:
            return _problem("There is nothing to show", str(error), 404)
        except TableError as error:
            return _problem("The table cannot be read", str(error), 503)
        except Exception as error:  # noqa: BLE001 - a page of a hostile trajectory must not end the server
            where = in_one_line(request.url.path)
            _logger.error("The page %s failed: %s: %s", where, type(error).__name__, in_one_line(str(error)))
            return _problem("This page failed", f"The reason is a {type(error).__name__}.", 500)

    def _mlflow(self, request: Request) -> Response:
        """Redirect to MLflow's page of a trace."""
        trace_id = request.query_params.get("trace", "")
        is_id = len(trace_id) == _TRACE_DIGITS and not set(trace_id) - set("0123456789abcdef")
        if not is_id or not self._trackers.has_mlflow:
            return _problem("There is nothing to show", "This is no trajectory in MLflow.", 404)
        try:
            return RedirectResponse(self._trackers.mlflow_page(trace_id), 302)
        except ViewerError as error:
            return _problem("MLflow", str(error), 404)


def _problem(
    title: str,
    sentence: str,
    status: int,
    refresh_seconds: int | None = None,
    choices: Sequence[tuple[str, str | None]] = (),
) -> Response:
    links = ServedLinks()
    links.refresh_seconds = refresh_seconds
    page = render("problem.html", links, title=title, sentence=sentence[:_MAX_SENTENCE], choices=choices)
    return HTMLResponse(page, status)


def _unknown(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return _problem("There is no such page", f"{request.url.path[:100]} is no page of this server.", status)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield
