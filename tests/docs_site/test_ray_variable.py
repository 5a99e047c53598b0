"""Pages that switch tracing on by a variable name the one that a program on Ray needs beside it."""

from __future__ import annotations

import re

from tests.docs_site.documents import ROOT, blocks

HOOK = "RAY_RUNTIME_ENV_HOOK=otel_rollout.ray.runtime_env_hook"
CONSEQUENCE = "no trajectory is whole"
SWITCHED_ON = re.compile(r"\bOTEL_TRACES_EXPORTER=(?!none)")
PREPARED = {
    "docs/agents.md": "docs/agents.md",
    "docs/verl.md": "otel_rollout/integrations/verl/driver_setup.py",
    "examples/verl/README.md": "otel_rollout/integrations/verl/driver_setup.py",
}
"""Page → file with the call of ``instrument()``, which prepares the page's programs for Ray."""
NOT_ON_RAY = {"docs/integrations.md", "docs/trl.md", "docs/verifiers.md"}
"""Pages whose programs do not use Ray."""


def test_page_that_switches_tracing_on_names_what_ray_needs() -> None:
    """It names the hook, and says what becomes of trajectories without it."""
    pages = {block.page for block in blocks() if SWITCHED_ON.search(block.text)}
    assert {*PREPARED, *NOT_ON_RAY} < pages, "a page that needs no exception"
    for page in sorted(pages - {*PREPARED, *NOT_ON_RAY}):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert HOOK in text, page
        assert CONSEQUENCE in text, page


def test_programs_of_other_pages_are_prepared_for_ray() -> None:
    """The page or the integration calls ``instrument()``."""
    for page, file in PREPARED.items():
        assert re.search(r"^ *instrument\(\)", (ROOT / file).read_text(encoding="utf-8"), re.M), page
