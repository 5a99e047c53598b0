"""Export spans and scores to W&B Weave."""

from __future__ import annotations

from collections.abc import Sequence

from otel_rollout.exporting.api import ExportFailure, FailureKind, UndeliveredError
from otel_rollout.exporting.arguments import positive_bytes
from otel_rollout.exporting.base import IdentityExporter, rejecting
from otel_rollout.exporting.projects import by_project
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity
from otel_rollout.otlp.span import Span
from otel_rollout_weave import mapping, settings
from otel_rollout_weave.calls import MAX_REQUEST_BYTES, CallWriter, RunningMarkers
from otel_rollout_weave.mapping import WeaveCall
from otel_rollout_weave.nested_calls import NestedCalls
from otel_rollout_weave.scores import (
    ScoresBelow,
    ScoreWriter,
    WeaveFeedback,
    feedback_for,
    find,
    has_trajectories,
    newest,
)
from otel_rollout_weave.server import Projects, Server


class WeaveSpanExporter(IdentityExporter):
    """Writes spans to W&B Weave as calls, one trace per trajectory.

    Trajectories are searchable by identity and score.

    Without ``project``, each span goes to the Weave project that its ``semconv.PROJECT_NAME`` names; a
    missing project is created. Scores become feedback, and appear in the output of a trajectory's root. A
    call is written once, however often its span is exported.

    Every argument wins over its environment variable. The constructor opens no connection.

    Args:
        api_key: key of the W&B account (``WANDB_API_KEY``, else the netrc file that ``wandb login`` writes).
        entity: user or team (``WANDB_ENTITY``; the account's default).
        project: Weave project of all spans, also as ``entity/project`` (``WANDB_PROJECT``).
        run_id: W&B run, of the calls' own project, that all calls belong to (``WANDB_RUN_ID``).
        base_url: W&B server (``WANDB_BASE_URL``; https://api.wandb.ai).
        trace_server_url: Weave trace server (``WF_TRACE_SERVER_URL``; the one that belongs to ``base_url``).
        timeout: maximum seconds without a byte from the server in one request; 30.
        max_request_bytes: maximum bytes of JSON in one request. A larger call is sent alone.

    Raises:
        ValueError: an argument or environment variable is missing or malformed.
    """

    takes_decoded = True

    def __init__(
        self,
        *,
        api_key: str | None = None,
        entity: str | None = None,
        project: str | None = None,
        run_id: str | None = None,
        base_url: str | None = None,
        trace_server_url: str | None = None,
        timeout: float | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        super().__init__("Weave")
        self._settings = settings.resolve(
            api_key=api_key,
            entity=entity,
            project=project,
            run_id=run_id,
            base_url=base_url,
            trace_server_url=trace_server_url,
            timeout=timeout,
        )
        self._server = Server(self._settings)
        self._projects = Projects(self._server, self._settings)
        max_bytes = positive_bytes("max_request_bytes", max_request_bytes)
        self._calls = CallWriter(self._server, self._projects, max_bytes)
        self._scores = ScoreWriter(self._server)
        self._running = RunningMarkers(self._server, self._calls)
        self._nested = NestedCalls()
        self._scores_below = ScoresBelow()
        self._last_project: str | None = None
        self._linked_run: str | None = None

    def write(self, spans: Sequence[Span]) -> None:
        """Write spans and their scores."""
        for project, group in by_project(spans, self._last_project).items():
            project_id = self._projects.id_of(project)
            calls, scores = self._mapped(group, project_id)
            self._calls.write(project_id, calls)
            self._running.remove(project_id, calls)
            self._scores.write(project_id, scores)
            self._last_project = project or self._last_project

    def write_running(self, roots: Sequence[Span]) -> None:
        """Show running trajectories by markers."""
        if not self._running.is_possible:
            return
        for project, group in by_project(roots[: self._running.room], None).items():
            project_id = self._projects.id_of(project)
            self._running.show(project_id, group, self._run_of(project_id))

    def write_link(self, run: str, rollout_run_id: str) -> None:
        """Link calls to a W&B run, given as ``entity/project/run``.

        The run of a stored call cannot change, and a call that is written again would show twice. So stored
        trajectories without the run get feedback ``wb_run``.
        """
        parts = run.split("/")
        if len(parts) != 3 or not all(parts):
            raise UndeliveredError(
                FailureKind.REFUSED, f"publish_run(weave={run!r}): expected entity/project/run."
            )
        self._linked_run = run
        for project_id in {*self._projects.known_ids(), f"{parts[0]}/{parts[1]}"}:
            try:
                self._scores.link_run(project_id, run, rollout_run_id)
            except UndeliveredError as error:
                if error.status != 404:  # the run's project need not be a Weave project
                    raise

    def find_in(self, project: str, scores: Sequence[TrajectoryIdentity]) -> list[Candidate[str]]:
        """Find the root calls of the scores' steps by their attributes."""
        return find(self._server, self._projects.id_of(project), scores)

    def has_stored(self, project: str, run: str) -> bool:
        """Return whether a run has stored any trajectory of a project."""
        return has_trajectories(self._server, self._projects.id_of(project), run)

    def write_scores(self, project: str, scores: Sequence[tuple[Span, Candidate[str]]]) -> None:
        """Write scores by identity as feedback of their trajectories' root calls."""
        with rejecting():
            feedback = newest(feedback_for(scores))
        self._scores.write(self._projects.id_of(project), feedback)

    def check(self) -> ExportFailure | None:
        """Ask W&B and the trace server whether they grant access; None if they do."""
        return self.guarded(self._check)

    def traces_url(self, project: str) -> str | None:
        """Return the address of a project's page of traces; None if unknown."""
        found = self.asked(lambda: self._projects.id_of(project))
        return f"{self._settings.app_url}/{found}/weave/traces" if isinstance(found, str) else None

    def destination(self, project: str) -> str:
        """Return where a person finds a project's traces; a page's address once known."""
        known = self._projects.known_id(project)
        if known is not None:
            return f"W&B Weave at {self._settings.app_url}/{known}/weave/traces"
        name = "/".join(filter(None, (self._settings.entity, self._settings.project or project)))
        return f"W&B Weave project {name!r} at {self._settings.app_url}"

    def close(self) -> None:
        """Close connections."""
        self._server.close()

    def redact(self, text: str) -> str:
        """Mask the API key in a message."""
        return self._settings.redact(text)

    def _mapped(
        self, spans: Sequence[Span], project_id: str
    ) -> tuple[list[WeaveCall], dict[str, WeaveFeedback]]:
        run = self._run_of(project_id)
        with rejecting():
            scores = newest(score for span in spans for score in self._scores_below.feedback_of(span))

            def known(feedback_id: str) -> WeaveFeedback | None:
                candidates = (scores.get(feedback_id), self._scores.get(feedback_id))
                return max(filter(None, candidates), key=lambda score: score.rank, default=None)

            self._nested.add(spans)
            return [
                mapping.to_call(span, project_id, run, known, self._nested.place_of(span)) for span in spans
            ], scores

    def _run_of(self, project_id: str) -> str | None:
        own = f"{project_id}/{self._settings.run_id}" if self._settings.run_id else None
        return self._linked_run or own

    def _check(self) -> None:
        self._server.ping()
        default = self._server.default_entity()
        entity = self._settings.entity or default or self._projects.entity()
        project = self._server.project_name(entity, self._settings.project or "otel-rollout")
        if project:  # else it is created by the first export
            nothing = {"call_ids": ["00000000-0000-4000-8000-000000000000"]}
            for _ in self._server.find_calls(
                f"{entity}/{project}", ["id"], "reading from Weave", filter=nothing
            ):
                pass
