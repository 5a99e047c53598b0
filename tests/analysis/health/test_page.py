"""The page of a run's health links where there are addresses, and shows what a run holds as text."""

from __future__ import annotations

from otel_rollout.look.analysis.health import Finding, Health, Run
from otel_rollout.look.analysis.report.page import page_of_health
from otel_rollout.look.pages.rendering import Links

_FINDINGS = (
    Finding("healthy", "All 8 trajectories have a reward.", name="reward_missing"),
    Finding("unhealthy", "Tool `<b>` fails.", tuple(range(1, 61)), ("1/<i>/0",), "tool_error_burst"),
    Finding("unobserved", "No version is known.", name="policy_lag"),
)


class _Addresses(Links):
    """Addresses of a server."""

    def step(self, step: int | None, validate: bool = False) -> str | None:
        return f"/steps/{'validation/' if validate else ''}{step}"

    def trajectory(self, reference: str) -> str | None:
        return "/trajectories/1"


def test_served_page_links_steps_and_trajectories() -> None:
    """What is unhealthy comes first; of many steps, the first are named."""
    health = Health(Run("run-1", "project", "first"), 8, _FINDINGS, validate=True)
    page = page_of_health(health, _Addresses())
    assert "first · run-1" in page
    assert "<summary>1 healthy</summary>" in page
    assert '<a href="/steps/validation/50">50</a>' in page
    assert "/steps/validation/51" not in page
    assert "and 10 more" in page
    assert '<a href="/trajectories/1">1/&lt;i&gt;/0</a>' in page
    assert "8 validation trajectories" in page
    assert "1 unhealthy, 1 unobserved, 1 healthy" in page
    assert page.index("tool_error_burst") < page.index("policy_lag") < page.index("reward_missing")


def test_page_that_stands_alone_links_nothing() -> None:
    """Names are text, and nothing in them is markup; those that a message quotes are set as code."""
    page = page_of_health(Health(Run(None, None, None), 1, _FINDINGS))
    assert "href" not in page
    assert "run without a name" in page
    assert "Tool <code>&lt;b&gt;</code> fails." in page
    assert "1 trajectory" in page


def test_page_without_checks_says_so() -> None:
    """All were skipped."""
    assert "no check ran" in page_of_health(Health(Run("run-1", None, None), 3, ()))
