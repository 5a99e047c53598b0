"""The documentation site: each page has a place, each public name an entry, each link a target."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs_site.documents import PAGES, ROOT
from website import docstrings, links, pages

CONFIGURATION = tomllib.loads((ROOT / "website" / "zensical.toml").read_text(encoding="utf-8"))["project"]
API = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "website" / "api").glob("*.md"))
DOCUMENTED = set(re.findall(r"^::: ([\w.]+)$", API, re.MULTILINE))
SITE = "https://example.org/docs/"
_FENCED = re.compile(r"^ *```.*?^ *``` *$", re.MULTILINE | re.DOTALL)


def placed(entries: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from placed(value)


def test_every_page_has_one_place_in_the_navigation() -> None:
    """A page without a place is found by nobody; a place without a page is a dead link."""
    in_navigation = list(placed(CONFIGURATION["nav"]))
    files = set(pages.sources().values())
    api = {f"api/{path.name}" for path in (ROOT / "website" / "api").glob("*.md")}
    assert sorted(in_navigation) == sorted(files | api)


def test_every_public_name_is_in_the_reference() -> None:
    """The names of `otel_rollout`, one by one; the modules of public packages, as wholes."""
    package = importlib.import_module("otel_rollout")
    assert {f"otel_rollout.{name}" for name in package.__all__} - DOCUMENTED == set()
    modules = {
        f"{folder.replace('/', '.')}.{path.stem}".removesuffix(".__init__")
        for folder in ("otel_rollout/exporting", "otel_rollout/integrations/kit")
        for path in (ROOT / folder).glob("*.py")
    }
    assert modules - DOCUMENTED == set()


def test_reference_copies_no_signature() -> None:
    """Its pages hold headings, sentences and directives."""
    assert not re.search(r"\bdef |\w\(self|```", API)


def test_each_question_is_two_clicks_from_the_front_page() -> None:
    """The front page and README.md link the page of questions, where each question is a heading."""
    for front in ("docs/index.md", "README.md"):
        assert "questions.md)" in (ROOT / front).read_text(encoding="utf-8")
    questions = markdown_anchors((ROOT / "docs" / "questions.md").read_text(encoding="utf-8"))
    assert len(questions) == 1 + 9


def markdown_anchors(text: str) -> set[str]:
    """Return the anchors that a forge gives to the headings of a page."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*?) *$", _FENCED.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_work_at_the_forge(page: Path) -> None:
    """A relative link names a file of the repository, and a heading of it; another has a host."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme in ("http", "https"), link
            assert parts.hostname, link
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        assert target.exists(), link
        if parts.fragment and target.suffix == ".md":
            assert parts.fragment in markdown_anchors(target.read_text(encoding="utf-8")), link


def test_link_of_a_page_leads_to_the_site_or_to_the_forge() -> None:
    """Pages are linked as pages, other files at the forge, and code stays as it is."""
    text = (
        "[a](recording.md#http) [recording.md](recording.md) [b](../CONTRIBUTING.md) "
        "[c](../tests/waiting.py) [d](../examples/own_trainer) [e](#here) "
        "[f](https://example.org/x) ![g](images/show.png)\n"
        "```bash\n[h](../README.md)\n```\n"
    )
    forge = "https://github.com/otel-rollout/otel-rollout"
    assert pages.with_links_of_the_site(text, ROOT / "docs" / "look.md") == (
        "[a](recording.md#http) [Record rollouts](recording.md) [b](contributing.md) "
        f"[c]({forge}/blob/main/tests/waiting.py) [d]({forge}/tree/main/examples/own_trainer) [e](#here) "
        "[f](https://example.org/x) ![g](images/show.png)\n```bash\n[h](../README.md)\n```\n"
    )


@given(st.lists(st.text("ab `[]()#\n"), max_size=20).map("".join))
def test_text_without_relative_links_is_not_changed(text: str) -> None:
    """Only the target of a link changes."""
    changed = pages.with_links_of_the_site(text, ROOT / "docs" / "look.md")
    assert re.sub(r"\]\([^)\s]*\)", "", changed) == re.sub(r"\]\([^)\s]*\)", "", text)


@pytest.mark.parametrize("former", pages.FORMER)
def test_former_address_leads_to_the_page_that_has_its_text(former: str, tmp_path: Path) -> None:
    """The page of a former address names a page of docs/ and a heading of it, and is no page itself."""
    page, _, anchor = pages.FORMER[former].partition("#")
    assert former not in {path.stem for path in (ROOT / "docs").glob("*.md")}
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert not anchor or anchor in markdown_anchors(text)
    pages.redirect_former(tmp_path)
    written = (tmp_path / former / "index.html").read_text(encoding="utf-8")
    target = ("../" if page == "index" else f"../{page}/") + (f"#{anchor}" if anchor else "")
    assert f'<a href="{target}">' in written


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("there/", None),
        ("there/#known", None),
        ("/there/", None),
        (f"{SITE}there/", None),
        ("https://example.com/anything#x", None),
        ("mailto:a@example.com", None),
        ("#top", None),
        ("gone/", "no such file"),
        ("there/#unknown", "no such anchor"),
        ("#unknown", "no such anchor"),
        (f"{SITE}gone/", "no such file"),
        ("https:///x", "not an address"),
        ("ftp://example.com/", "not an address"),
    ],
)
def test_dead_link_of_the_site_is_found(tmp_path: Path, link: str, problem: str | None) -> None:
    """A link leads to a file of the site, and to an anchor that its page has."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<h2 id="known">x</h2>')
    (tmp_path / "index.html").write_text(f'<h1 id="top">x</h1><a href="{link}">y</a>')
    found = links.dead_links(tmp_path, SITE)
    assert found == ([] if problem is None else [f"index.html: {link}: {problem}"])


def test_site_loads_nothing_of_third_parties() -> None:
    """Fonts of another host would tell it who reads."""
    assert CONFIGURATION["theme"]["font"] is False


def test_docstrings_become_markdown() -> None:
    """Roles of reStructuredText and paths of pages become links, literal blocks Markdown's code."""
    text = "Undo :func:`~otel_rollout.instrument` (docs/recording.md), as::\n\n    x = y[::2]\n"
    link = '<autoref identifier="otel_rollout.instrument" optional>`otel_rollout.instrument`</autoref>'
    page = "[recording.md](../recording.md)"
    assert docstrings.markdown(text) == f"Undo {link} ({page}), as:\n\n    x = y[::2]\n"


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    """Somebody new finds the room for a change by the paths of these pages."""
    folders = (ROOT, *(ROOT / name for name in ("otel_rollout", "exporters", "website")))
    named = re.findall(r"`([\w/]+/\w+\.(?:py|sql|toml))`", (ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 20
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []


def test_pages_that_code_names_exist() -> None:
    """A message or a comment leads to a page of docs/ that is there."""
    named = {
        (str(path.relative_to(ROOT)), page)
        for folder in ("otel_rollout", "exporters", "autoload", "examples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for page in re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert [(path, page) for path, page in sorted(named) if not (ROOT / page).exists()] == []
