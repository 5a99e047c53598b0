"""Collect the site's pages: those of docs/, and those of the repository's top that have a place on the site.

A page links files as the forge needs it: `table.md` in docs/, `../CONTRIBUTING.md` above it. On the site, the
link leads to the page of that file if there is one, else to the file at the forge.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FORGE: Final = "https://github.com/otel-rollout/otel-rollout"
MOVED: Final = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    ".github/SECURITY.md": "security-policy.md",
    "examples/verl/README.md": "verl-recipe.md",
}
"""Files outside docs/ that are pages of the site, and their names there."""

FORMER: Final = {
    "black-box-agents": "agents#agents-that-cannot-be-edited",
    "coming-from": "tutorial#coming-from-another-tracer",
    "exporters": "extending#your-own-exporter",
    "getting-started": "index",
    "groups": "why#group",
    "health": "why#health",
    "instrumentation": "agents#spans-of-other-libraries",
    "integrations": "extending#your-own-trainer",
    "langfuse": "collector#langfuse",
    "notebooks": "recording#notebooks-pytest-ctrl-c",
    "platform": "operations",
    "ray": "recording#ray",
    "receiver": "engines#the-receiver",
    "report": "why#report",
    "sampling": "volume",
    "security": "reliability#content-and-secrets",
    "show": "look#one-trajectory",
    "support": "operations#versions-and-support",
    "timeline": "why#timeline",
    "tokens": "training#token-ids-as-text",
    "values": "recording#values",
    "view": "look#in-a-browser",
}
"""Pages that other pages have taken in → the page and the section that have their text."""

_REDIRECT: Final = """\
<!doctype html>
<meta charset="utf-8">
<title>Moved</title>
<link rel="canonical" href="{target}">
<meta http-equiv="refresh" content="1; url={target}">
<script>location.replace("{page}" + (location.hash || "{anchor}"))</script>
<p>This page has moved: <a href="{target}">go on</a>.</p>
"""

_FENCED = re.compile(r"^( *)```.*?^\1``` *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_TITLE = re.compile(r"^# (.*)$", re.MULTILINE)


def collect(site_pages: Path) -> None:
    """Write all pages, pictures and the style sheet into an empty directory."""
    shutil.rmtree(site_pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "images", site_pages / "images")
    shutil.copytree(ROOT / "website" / "assets", site_pages / "assets")
    shutil.copytree(ROOT / "website" / "api", site_pages / "api")
    for source, name in sources().items():
        text = source.read_text(encoding="utf-8")
        (site_pages / name).write_text(with_links_of_the_site(text, source), encoding="utf-8")


def redirect_former(site: Path) -> None:
    """Write a page at each former address of the built site; a link to a heading keeps the heading."""
    for former, target in FORMER.items():
        name, mark, anchor = target.partition("#")
        page = "../" if name == "index" else f"../{name}/"
        place = site / former / "index.html"
        place.parent.mkdir(parents=True, exist_ok=True)
        redirect = _REDIRECT.format(target=page + mark + anchor, page=page, anchor=mark + anchor)
        place.write_text(redirect, encoding="utf-8")


def sources() -> dict[Path, str]:
    """Return the Markdown files that become pages, each with its name on the site."""
    of_docs = {path: path.name for path in (ROOT / "docs").glob("*.md")}
    return of_docs | {ROOT / name: on_site for name, on_site in MOVED.items()}


def name_on_site(path: Path) -> str | None:
    """Return a file's path on the site, or None if the site does not have it."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return MOVED.get(name)


def with_links_of_the_site(text: str, source: Path) -> str:
    """Return a page whose links lead to pages of the site, or to the forge; code stays as it is."""
    kept, at = [], 0
    for block in _FENCED.finditer(text):
        kept += [_relinked(text[at : block.start()], source), block[0]]
        at = block.end()
    return "".join([*kept, _relinked(text[at:], source)])


def _relinked(prose: str, source: Path) -> str:
    return _LINK.sub(lambda found: _link(found["text"], found["target"], source), prose)


def _link(text: str, target: str, source: Path) -> str:
    name, mark, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", target):
        return f"[{text}]({target})"
    path = Path(os.path.normpath(source.parent / name))
    page = name_on_site(path)
    if page is None:
        kind = "tree" if path.is_dir() else "blob"
        page = f"{FORGE}/{kind}/main/{path.relative_to(ROOT).as_posix()}"
    elif text.endswith(".md"):  # a file's name says nothing on the site
        text = _title(path)
    return f"[{text}]({page}{mark}{anchor})"


def _title(path: Path) -> str:
    found = _TITLE.search(path.read_text(encoding="utf-8"))
    return found[1] if found else path.stem
