"""Tell which segments a run's targets still need to which this forwarder does not deliver.

``otel-rollout forward --to delta`` delivers to one target of a run, or to one that the run does not have. The
run's other targets may be down meanwhile, and get their spans later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.exporting.api import reads_spool
from otel_rollout.exporting.entry_points import installed
from otel_rollout.spool import layout
from otel_rollout.spool.layout import SegmentName


class OtherTargets:
    """The targets in a run's manifest to which this forwarder does not deliver.

    Args:
        node_dir: a node directory of the run.
        delivered_to: names of the exporters of this forwarder.
    """

    def __init__(self, node_dir: Path, delivered_to: Collection[str]) -> None:
        self._node_dir = node_dir
        manifest = layout.read_manifest(node_dir)
        self._names = [name for name in manifest.exporters if name not in delivered_to] if manifest else []
        self._need_all = any(map(_may_need_all, self._names))
        self._cursors: Mapping[str, Mapping[str, int]] = {}

    def refresh(self) -> None:
        """Read the cursors of the other targets, which only another forwarder moves.

        Raises:
            sqlite3.OperationalError: the ledger cannot be read at present.
        """
        if self._names:
            self._cursors = read_ledger(self._node_dir).cursors

    def are_done_with(self, name: SegmentName, size: int) -> bool:
        """Return whether none of the other targets needs a segment of ``size`` bytes."""
        return not self._need_all and all(
            self._cursors.get(target, {}).get(name.stem, 0) >= size for target in self._names
        )


def _may_need_all(name: str) -> bool:
    """Return whether another program may read an exporter's spans from the segments."""
    try:
        return reads_spool(installed()[name].load())
    except Exception:  # noqa: BLE001 - a foreign package, or none: nobody knows what it needs
        return True
