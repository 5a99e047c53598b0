"""Find dead links in the built site: each names a file of the site, and an anchor of it."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Links and anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element links, and the anchor that it is."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")


def dead_links(site: Path, site_url: str) -> list[str]:
    """Return a line for each link of the site's pages that leads nowhere.

    A link to another host is only read: it needs a host, and no blank.

    Args:
        site: directory of the built site.
        site_url: its address; links that begin with it lead to the site.
    """
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            problem = _problem(link, path, site, site_url, pages)
            if problem:
                found.append(f"{path.relative_to(site)}: {link}: {problem}")
    return found


def _problem(link: str, source: Path, site: Path, site_url: str, pages: dict[Path, _Page]) -> str | None:
    for beginning in (site_url, urlsplit(site_url).path):  # the page 404.html, at every address, has the path
        if link.startswith(beginning):
            link = "/" + link.removeprefix(beginning)
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return _external_problem(link)
    if not parts.path:
        target = source
    else:
        base = site if parts.path.startswith("/") else source.parent
        target = Path(os.path.normpath(base / unquote(parts.path).lstrip("/")))
        target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "no such anchor"
    return None


def _external_problem(link: str) -> str | None:
    parts = urlsplit(link)
    if parts.scheme in ("mailto", "data", "javascript"):
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(mark.isspace() for mark in link):
        return "not an address"
    return None
