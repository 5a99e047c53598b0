"""Run a Collector with agent-tail.yaml.

It is an installed otelcol-contrib, else the slim one with otlpjsonfile/.

``python -m tests.collector.tailing`` builds it ahead of the tests, and prints its path.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import yaml

from tests.collector.support import CONFIGURATIONS

MODULE = Path(__file__).parent / "otlpjsonfile"


def get_tailing() -> Path:
    """Its path; what was built is kept until the manifest or the module changes."""
    spec = importlib.util.spec_from_file_location("get_collector", CONFIGURATIONS / "get_collector.py")
    assert spec is not None
    assert spec.loader is not None
    get_collector = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(get_collector)

    version = get_collector.wanted_version()
    if installed := get_collector.on_path(version):
        return Path(installed)
    manifest = yaml.safe_load(get_collector.MANIFEST.read_text())
    name = (MODULE / "go.mod").read_text().split()[1]
    manifest["receivers"].append({"gomod": f"{name} v0.0.0", "path": str(MODULE)})
    described = yaml.safe_dump(manifest)
    sources = b"".join((MODULE / file).read_bytes() for file in ("go.mod", "receiver.go"))
    target = get_collector.cached_path(described.encode() + sources)
    if not target.exists():
        get_collector.build(version, target, described)
    return Path(target)


if __name__ == "__main__":
    print(get_tailing())
