"""Build the site into build/site; fail on a warning and on a dead link."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from website import links, pages

SITE = pages.ROOT / "build" / "site"
CONFIGURATION = pages.ROOT / "website" / "zensical.toml"


def main() -> int:
    """Build the site, and return the process's exit status."""
    pages.collect(SITE.with_name("site-pages"))
    shutil.rmtree(SITE, ignore_errors=True)
    copied = shutil.copy(CONFIGURATION, SITE.parent)  # the builder writes below its configuration alone
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(
        [*command, "--config-file", copied],
        cwd=pages.ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    if built.returncode:
        return built.returncode
    pages.redirect_former(SITE)
    (site_url,) = re.findall(r'^site_url = "(.*)"$', CONFIGURATION.read_text(encoding="utf-8"), re.MULTILINE)
    dead = links.dead_links(SITE, site_url)
    for line in dead:
        print(line, file=sys.stderr)
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE}, {len(dead)} dead links")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
